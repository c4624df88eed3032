#pragma once
// cuBLASLt for plain bf16 products, what the back end's own kernels are compared with. Loaded while the
// program runs: the library is larger than all of this program, and only machines with a GPU have it.

#include <cstdint>

#include "bench/kernels/cuda_measure.h"
#include "core/result.h"

namespace cedar::bench {

constexpr int64_t kProductWorkspace = int64_t{32} << 20;

/// Whether libcublasLt.so.13 can be loaded.
bool have_cublas_lt();

/// Queues the product on a CUDA stream. `workspace`: kProductWorkspace bytes of the device. All pointers
/// 256-byte aligned. Errors: unsupported without the library or where it has no algorithm for the shape,
/// internal where it fails.
Status multiply_with_cublas_lt(const BfProduct& p, void* workspace, void* stream);

}  // namespace cedar::bench
