#pragma once
// Time and ceilings of a CUDA device. In builds without the back end everything answers `unsupported`.

#include <functional>
#include <string>

#include "bench/kernels/ceilings.h"
#include "bench/kernels/timing.h"
#include "core/float_formats.h"
#include "kernels/kernel_context.h"

namespace cedar::bench {

/// "NVIDIA H200"
Result<std::string> cuda_device_name(Device device);

/// Times calls of `run`, which queues one call of an operation on the context's stream. Calls are captured
/// into a graph of at least about a millisecond, which takes the host's launches out of the time, and a
/// sample is one replay of it, measured by events, over the number of calls. What cannot be captured is
/// launched as it is.
Result<Timing> time_on_cuda(kernels::KernelContext& ctx, double min_s,
                            const std::function<Status()>& run);

/// y [rows, outputs] = x [rows, inputs] W^T of bf16 numbers, dense, on the device.
struct BfProduct {
  const Bf16* weight = nullptr;
  const Bf16* x = nullptr;
  Bf16* y = nullptr;
  int64_t rows = 0, outputs = 0, inputs = 0;
};
/// The product by cuBLASLt, as a function that queues it on the context's stream. Errors: unsupported without
/// the library.
Result<std::function<Status()>> library_product(kernels::KernelContext& ctx, const BfProduct& p);

/// read_bytes_per_s is the rate of a copy of 2 GiB on the device, read plus write: nothing that reads does
/// better by much. bf16_flop_per_s: cuBLASLt, 8192 x 8192 x 8192, random numbers; 0 without the library.
/// f32_flop_per_s: 0, unknown.
Result<Ceilings> measure_cuda_ceilings(kernels::KernelContext& ctx);

}  // namespace cedar::bench
