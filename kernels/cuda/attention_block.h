#pragma once
// Attention of a few queries over keys in blocks of 64, for shapes that the tensor-core kernels do not take:
// the online softmax of kernels/sparse_attention.h in plain fp32. One block of threads, a warp a query's
// softmax.

#include <cstdint>

#include "kernels/cuda/device_math.h"

namespace cedar::kernels::cuda {

constexpr int kPlainQueries = 4;
constexpr int kPlainKeys = 64;
constexpr int kPlainThreads = kPlainQueries * kWarp;

/// Shared memory of the queries' state. `value_words` is `key_words` where values are the keys.
struct PlainState {
  uint32_t* key_words;    // [64, stride]: pairs of columns as bf16
  uint32_t* value_words;  // [64, stride]
  float* q;               // [queries, head_dim]
  float* sums;            // [queries, head_dim]
  float* scores;          // [queries, 64]: then the probabilities
  float* alpha;           // [queries]
  int head_dim;
  // One word more than the row: a column of 64 rows lies in different banks.
  __host__ __device__ static int stride(int head_dim) { return head_dim / 2 + 1; }
  static int64_t bytes(int head_dim, bool separate_values) {
    return int64_t{4} * ((separate_values ? 2 : 1) * kPlainKeys * stride(head_dim) +
                         2 * kPlainQueries * head_dim + kPlainQueries * (kPlainKeys + 1));
  }

  __device__ PlainState(uint8_t* storage, int dim, bool separate_values) : head_dim(dim) {
    key_words = reinterpret_cast<uint32_t*>(storage);
    value_words = separate_values ? key_words + kPlainKeys * stride(dim) : key_words;
    q = reinterpret_cast<float*>(value_words + kPlainKeys * stride(dim));
    sums = q + kPlainQueries * dim;
    scores = sums + kPlainQueries * dim;
    alpha = scores + kPlainQueries * kPlainKeys;
  }
};

/// A query's running maximum and sum, in the registers of its warp.
struct PlainSoftmax {
  float maximum = -1e30f;
  float total = 0;
};

/// One block of `count` keys, already in shared memory. All threads call; ends behind a barrier.
__device__ inline void plain_attend(const PlainState& s, PlainSoftmax& softmax, int count,
                                    float scale) {
  const int pairs = s.head_dim / 2, stride = PlainState::stride(s.head_dim);
  const float minus_infinity = -__int_as_float(0x7f800000);
  __syncthreads();
  for (int i = threadIdx.x; i < kPlainQueries * kPlainKeys; i += kPlainThreads) {
    const uint32_t* key = s.key_words + i % kPlainKeys * stride;
    const float* q = s.q + i / kPlainKeys * s.head_dim;
    float dot = 0;
    for (int w = 0; w < pairs; ++w) {
      dot = fmaf(q[2 * w], low_half(key[w]), dot);
      dot = fmaf(q[2 * w + 1], high_half(key[w]), dot);
    }
    s.scores[i] = i % kPlainKeys < count ? dot * scale : minus_infinity;
  }
  __syncthreads();
  const int query = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  float* scores = s.scores + query * kPlainKeys;
  float largest = fmaxf(scores[lane], scores[lane + kWarp]);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
  }
  largest = fmaxf(largest, softmax.maximum);
  const float alpha = exp_exact(softmax.maximum - largest);
  const float first = exp_exact(scores[lane] - largest);
  const float second = exp_exact(scores[lane + kWarp] - largest);
  softmax.total = fmaf(softmax.total, alpha, warp_sum(first + second));
  softmax.maximum = largest;
  scores[lane] = round_to_bf16(first);
  scores[lane + kWarp] = round_to_bf16(second);
  if (lane == 0) s.alpha[query] = alpha;
  __syncthreads();
  for (int i = threadIdx.x; i < kPlainQueries * pairs; i += kPlainThreads) {
    const int row = i / pairs, pair = i % pairs;
    float* sums = s.sums + row * s.head_dim + 2 * pair;
    const float* p = s.scores + row * kPlainKeys;
    float low = sums[0] * s.alpha[row], high = sums[1] * s.alpha[row];
    for (int key = 0; key < count; ++key) {
      const uint32_t word = s.value_words[key * stride + pair];
      low = fmaf(p[key], low_half(word), low);
      high = fmaf(p[key], high_half(word), high);
    }
    sums[0] = low;
    sums[1] = high;
  }
  __syncthreads();
}

}  // namespace cedar::kernels::cuda
