#pragma once
// Sums of a tile whose inputs are split over the blocks of a cluster.

#include <cstdint>

#include "kernels/cuda/async_copy.h"

namespace cedar::kernels::cuda {

/// Every block calls with its part of sums[4 * kGroups], all its threads; the first `threads` of them hold
/// sums. Group j (8 columns of a wgmma tile) is summed in the order of the ranks by the block of rank j %
/// cluster, where sums[4 j .. 4 j + 3] hold the result afterwards. `scratch`: 4 * kGroups * 4 bytes for each
/// of the `threads`; other use of it by the block must be over when a thread calls. Blocks end with
/// leave_cluster(), after they have stored what they summed.
template <int kGroups>
__device__ __forceinline__ void sum_over_cluster(float (&sums)[4 * kGroups], float* scratch,
                                                 int threads) {
  const uint32_t size = cluster_size(), rank = cluster_rank();
  if (size == 1) return;
  const bool mine = threadIdx.x < threads;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4 * kGroups; ++i) {
    if (mine) scratch[i * threads + threadIdx.x] = sums[i];
  }
  cluster_barrier();
  for (uint32_t r = 0; mine && r < size; ++r) {
    const uint32_t remote = remote_address(shared_address(scratch + threadIdx.x), r);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (j % size != rank) continue;
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; ++i) {
        const float part = load_remote(remote + static_cast<uint32_t>(i * threads) * 4);
        sums[i] = r == 0 ? part : sums[i] + part;
      }
    }
  }
}

/// Until no block of the cluster reads another's scratch. A barrier does not wait for loads that are under
/// way: only a store of what depends on them, before the call, proves that they are over. Without it a block
/// could end and the next one on its multiprocessor write where a neighbour still reads.
__device__ __forceinline__ void leave_cluster() {
  if (cluster_size() > 1) cluster_barrier();
}

/// Whether this block holds group j of the result.
__device__ __forceinline__ bool owns_group(int j) { return j % cluster_size() == cluster_rank(); }

}  // namespace cedar::kernels::cuda
