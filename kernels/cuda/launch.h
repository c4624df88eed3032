#pragma once
// Launches with clusters, and what kernels ask about the device.

#include <cstdint>
#include <utility>

#include <cuda_runtime.h>

#include "core/result.h"
#include "kernels/cuda/check.h"

namespace cedar::kernels::cuda {

/// Early: before the launch before it in the stream is over, as soon as all of that one's blocks allow it. The kernel calls
/// wait_for_launch_before() (async_copy.h).
enum class Start { in_turn, early };

/// `cluster` consecutive blocks of grid.z form a cluster: they run at the same time and read each other's
/// memory.
template <class... Params, class... Args>
Status launch_clusters(const char* operation, void (*kernel)(Params...), dim3 grid, int cluster,
                       int threads, size_t shared_bytes, cudaStream_t stream, Start start,
                       Args&&... args) {
  CEDAR_CHECK_OK(allow_shared(operation, kernel, shared_bytes));
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[count++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 1;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = static_cast<unsigned>(cluster);
  }
  if (start == Start::early) {
    cudaLaunchAttribute& attribute = attributes[count++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return check(operation, cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...));
}

inline int multiprocessors() {
  int device = 0, count = 1;
  if (cudaGetDevice(&device) == cudaSuccess) {
    (void)cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  }
  return count;
}

/// How a launch of `grid` is to start of whose blocks a multiprocessor holds `resident`. Early where two such launches fit
/// side by side, or one fills the device; in between, the blocks that come early would crowd on a few multiprocessors.
inline Start start_of(const dim3& grid, int64_t resident) {
  const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
  const int64_t places = resident * multiprocessors();
  return 2 * blocks <= places || 10 * blocks >= 9 * places ? Start::early : Start::in_turn;
}
/// Of a multiprocessor.
constexpr int64_t kSharedBytesOfAll = 227 * 1024;

/// Into how many parts the inputs of a product are split, so that few rows of x keep the device busy: a power
/// of two of at most a portable cluster. It depends on the weight's shape alone, never on the rows: a row's
/// sums must not.
inline int input_parts(int64_t tiles, int64_t stages) {
  constexpr int64_t kEnoughBlocks = 264, kLeastStages = 4;
  int parts = 1;
  while (parts < 8 && tiles * parts < kEnoughBlocks && stages / (2 * parts) >= kLeastStages) {
    parts *= 2;
  }
  return parts;
}

}  // namespace cedar::kernels::cuda
