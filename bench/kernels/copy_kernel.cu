#include "bench/kernels/copy_kernel.h"

namespace cedar::bench {
namespace {

constexpr int kThreads = 512, kEach = 4;

__global__ void fill(uint4* to, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint64_t x = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u + 1;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    const auto low = static_cast<uint32_t>(x), high = static_cast<uint32_t>(x >> 32);
    to[i] = make_uint4(low, high, low * 0x85ebca6bu, high * 0xc2b2ae35u);
  }
}

__global__ void __launch_bounds__(kThreads) copy(uint4* to, const uint4* from, int64_t count) {
  const int64_t first = blockIdx.x * int64_t{kThreads * kEach} + threadIdx.x;
  uint4 values[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (first + i * kThreads < count) values[i] = __ldcs(from + first + i * kThreads);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (first + i * kThreads < count) __stcs(to + first + i * kThreads, values[i]);
  }
}

}  // namespace

void queue_fill(void* to, int64_t bytes, cudaStream_t stream) {
  fill<<<2048, kThreads, 0, stream>>>(static_cast<uint4*>(to), bytes / 16);
}

void queue_copy(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  const int64_t count = bytes / 16, each = kThreads * kEach;
  copy<<<static_cast<unsigned>((count + each - 1) / each), kThreads, 0, stream>>>(
      static_cast<uint4*>(to), static_cast<const uint4*>(from), count);
}

}  // namespace cedar::bench
