// The gate's product is a linear with f32 outputs; here a warp per row turns them into scores and chooses.

#include <string>

#include "core/units.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/linear_ops.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kWarps = 4;

struct Args {
  const float* gate;  // [rows, experts]
  const float* bias;
  const float* bias_image;
  const uint8_t* image_mask;
  int32_t* experts;
  float* weights;
  float route_scale;
  int rows, expert_count, top;
};

/// Floats in the order of unsigned numbers; 0 is less than any.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// A lane holds experts lane + 32 i, i < kMost, in registers.
template <int kMost>
__global__ void __launch_bounds__(32 * kWarps) choose(const __grid_constant__ Args a) {
  const int lane = threadIdx.x % 32, row = blockIdx.x * kWarps + threadIdx.x / 32;
  if (row >= a.rows) return;
  const bool image = a.image_mask != nullptr && a.image_mask[row] != 0;
  const float* bias = image ? a.bias_image : a.bias;
  float scores[kMost];
  uint32_t keys[kMost];  // 0: chosen already, or no expert
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int expert = lane + 32 * i;
    scores[i] = 0;
    keys[i] = 0;
    if (expert >= a.expert_count) continue;
    const float v = a.gate[row * int64_t{a.expert_count} + expert];
    scores[i] = sqrtf(v > 20.0f ? v : log1pf(expf(v)));
    keys[i] = ordered(scores[i] + bias[expert]);
  }
  float sum = 0;
  int32_t* experts = a.experts + row * int64_t{a.top};
  float* weights = a.weights + row * int64_t{a.top};
  for (int n = 0; n < a.top; ++n) {
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
  for (int i = lane; i < a.top; i += 32) weights[i] = weights[i] / sum * a.route_scale;
}

template <int kMost>
void launch(const Args& a, cudaStream_t stream) {
  choose<kMost><<<static_cast<unsigned>(ceil_div(a.rows, kWarps)), 32 * kWarps, 0, stream>>>(a);
}

}  // namespace

Status moe_gate(KernelContext& ctx, const MoeGateParams& p) {
  if (p.expert_count > 1024) {
    return make_error(Errc::unsupported,
                      "moe_gate: more than 1024 experts, got " + std::to_string(p.expert_count));
  }
  const ArenaScope scope(*ctx.arena);
  auto* gate = ctx.arena->allocate<float>(p.rows * p.expert_count);
  LinearParams linear_params;
  linear_params.weight = p.gate;
  linear_params.x = p.x;
  linear_params.x_stride = p.d;
  linear_params.y = gate;
  linear_params.y_stride = p.expert_count;
  linear_params.y_dtype = DType::f32;
  linear_params.rows = p.rows;
  CEDAR_CHECK_OK(cuda::linear(ctx, linear_params));

  Args a{};
  a.gate = gate;
  a.bias = p.bias;
  a.bias_image = p.bias_image;
  a.image_mask = p.image_mask;
  a.experts = p.experts;
  a.weights = p.weights;
  a.route_scale = p.route_scale;
  a.rows = static_cast<int>(p.rows);
  a.expert_count = static_cast<int>(p.expert_count);
  a.top = static_cast<int>(p.top);
  if (p.expert_count <= 128) {
    launch<4>(a, stream_of(ctx));
  } else if (p.expert_count <= 384) {
    launch<12>(a, stream_of(ctx));
  } else {
    launch<32>(a, stream_of(ctx));
  }
  return launched("moe_gate");
}

}  // namespace cedar::kernels::cuda
