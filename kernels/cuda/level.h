#pragma once
// Which kernels run: those for Hopper, whose code only the target sm_90a has, or plain ones, which every target from
// sm_80 on has.

#include <cuda_runtime.h>

#include "kernels/kernel_context.h"

// Around the bodies of kernels for Hopper: other targets compile them empty, and nothing launches them there.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CEDAR_HOPPER_CODE 1
#else
#define CEDAR_HOPPER_CODE 0
#if defined(__CUDA_ARCH__)
// What only those bodies use looks unused then.
#pragma nv_diag_suppress 177
#endif
#endif
// Clusters of a size that is part of the kernel; host code must see them, too.
#if CEDAR_HOPPER_CODE || !defined(__CUDA_ARCH__)
#define CEDAR_CLUSTER_OF(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define CEDAR_CLUSTER_OF(blocks)
#endif

namespace cedar::kernels::cuda {

/// Whether this context's device runs the kernels for Hopper, this build has them, and the context wants them.
inline bool on_hopper([[maybe_unused]] const KernelContext& ctx) {
#if defined(CEDAR_CUDA_HOPPER)
  int major = 0;
  return ctx.cuda_level == CudaLevel::hopper &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ctx.device.ordinal) ==
             cudaSuccess &&
         major == 9;
#else
  return false;
#endif
}

}  // namespace cedar::kernels::cuda
