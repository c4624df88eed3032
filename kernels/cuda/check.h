#pragma once
// What every file of the CUDA back end needs around a launch.

#include <string>

#include <cuda_runtime.h>

#include "core/result.h"
#include "kernels/kernel_context.h"

namespace cedar::kernels::cuda {

/// The runtime's answer as a Status naming the operation.
inline Status check(const char* operation, cudaError_t status) {
  if (status == cudaSuccess) return {};
  (void)cudaGetLastError();
  return make_error(Errc::internal, std::string(operation) + ": " + cudaGetErrorString(status));
}

/// To be returned after the last launch of an operation: bad configurations show here, faults of the kernels
/// at the next wait.
inline Status launched(const char* operation) { return check(operation, cudaGetLastError()); }

inline cudaStream_t stream_of(const KernelContext& ctx) {
  return static_cast<cudaStream_t>(ctx.cuda_stream);
}

/// Lets `kernel` use `bytes` of shared memory a block; more than 48 KiB needs asking, once a process and
/// device. Cheap enough for every launch.
template <class Kernel>
Status allow_shared(const char* operation, Kernel kernel, size_t bytes) {
  if (bytes <= 48 * 1024) return {};
  return check(operation, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               static_cast<int>(bytes)));
}

}  // namespace cedar::kernels::cuda
