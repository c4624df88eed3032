#pragma once
// A row's experts from the router's products (kernels/moe.h), by one warp.

#include <cstdint>

namespace cedar::kernels::cuda {

/// Floats in the order of unsigned numbers; 0 is less than any.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// `gate`: the row's products. A lane holds experts lane + 32 i, i < kMost, in registers. experts and weights [top]: anywhere
/// that the warp can read back.
template <int kMost>
__device__ __forceinline__ void choose_experts(const float* gate, const float* bias,
                                               int expert_count, int top, float route_scale,
                                               int32_t* experts, float* weights) {
  const int lane = threadIdx.x % 32;
  float scores[kMost];
  uint32_t keys[kMost];  // 0: chosen already, or no expert
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int expert = lane + 32 * i;
    scores[i] = 0;
    keys[i] = 0;
    if (expert >= expert_count) continue;
    const float v = gate[expert];
    scores[i] = sqrtf(v > 20.0f ? v : log1pf(expf(v)));
    keys[i] = ordered(scores[i] + bias[expert]);
  }
  float sum = 0;
  for (int n = 0; n < top; ++n) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kMost; ++i) most = max(most, keys[i]);
    most = __reduce_max_sync(~0u, most);
    // The least expert with that key; its lane alone clears the key.
    uint32_t mine = ~0u;
#pragma unroll
    for (int i = kMost - 1; i >= 0; --i) {
      if (keys[i] == most) mine = static_cast<uint32_t>(lane + 32 * i);
    }
    const uint32_t expert = __reduce_min_sync(~0u, mine);
    float score = 0;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (static_cast<uint32_t>(lane + 32 * i) == expert) {
        score = scores[i];
        keys[i] = 0;
      }
    }
    score = __shfl_sync(~0u, score, static_cast<int>(expert % 32));
    sum += score;
    if (lane == 0) {
      experts[n] = static_cast<int32_t>(expert);
      weights[n] = score;
    }
  }
  sum += 1e-20f;
  __syncwarp();
  for (int i = lane; i < top; i += 32) weights[i] = weights[i] / sum * route_scale;
}

}  // namespace cedar::kernels::cuda
