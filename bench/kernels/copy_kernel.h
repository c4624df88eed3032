#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace cedar::bench {

/// Bytes that no memory compresses. `bytes`: a multiple of 16.
void queue_fill(void* to, int64_t bytes, cudaStream_t stream);

/// Copies at the rate that a kernel can: four 16-byte loads a thread under way. `bytes`: a multiple of 16.
void queue_copy(void* to, const void* from, int64_t bytes, cudaStream_t stream);

}  // namespace cedar::bench
