#pragma once
// What every operation needs besides its parameters. Passed down explicitly; owned by the caller.

#include "core/arena.h"
#include "core/device.h"
#include "core/result.h"
#include "core/thread_pool.h"

namespace cedar::kernels {

/// One context serves one thread of execution: operations on it are ordered (CPU: synchronous; CUDA: one
/// stream). Operations take their workspace from `arena` and give it back before they return.
struct KernelContext {
  Device device;
  ThreadPool* pool = nullptr;     // CPU back end; never null
  Arena* arena = nullptr;         // never null; memory of `device`
  void* cuda_stream = nullptr;    // CUDA back end only
};

/// Two CPU back ends compute the same function; `portable` is what a processor without AVX-512 BF16 gets.
/// Tests run both. Sums inside a group of 32 may be ordered differently, nothing else differs.
enum class CpuIsa : uint8_t { portable, avx2, avx512_bf16 };
CpuIsa best_cpu_isa();

}  // namespace cedar::kernels
