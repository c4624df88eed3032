#pragma once
// What every operation needs besides its parameters. Passed down explicitly; owned by the caller.

#include <cstdint>
#include <string_view>

#include "core/arena.h"
#include "core/device.h"
#include "core/result.h"
#include "core/thread_pool.h"

namespace cedar::kernels {

/// Which instructions the CPU back end uses. All levels compute the same function; sums inside a group of
/// 32 products may be ordered differently, nothing else differs. Tests run every level the processor has.
///   portable: x86-64-v2; avx2: + AVX2, FMA, F16C; avx512_bf16: + AVX-512 F/BW/DQ/VL/VBMI/VNNI/BF16.
enum class CpuIsa : uint8_t { portable, avx2, avx512_bf16 };

std::string_view to_string(CpuIsa isa);
/// Whether this processor and operating system can run `isa`.
bool cpu_supports(CpuIsa isa);
/// The widest level for which cpu_supports() holds.
CpuIsa best_cpu_isa();

/// Which kernels the CUDA back end may use. hopper: wgmma, the copy engine and clusters, where the device has compute
/// capability 9 (others use plain ones); plain: what every device from sm_80 on can run.
enum class CudaLevel : uint8_t { plain, hopper };

/// One context serves one thread of execution: operations on it are ordered (CPU: synchronous; CUDA: one
/// stream). Operations take their workspace from `arena` and give it back before they return.
struct KernelContext {
  Device device;
  ThreadPool* pool = nullptr;   // CPU back end; never null
  Arena* arena = nullptr;       // never null; memory of `device`
  void* cuda_stream = nullptr;  // CUDA back end only
  CudaLevel cuda_level = CudaLevel::hopper;
  CpuIsa isa = best_cpu_isa();  // CPU back end only; REQUIRES: cpu_supports(isa)
};

}  // namespace cedar::kernels
