// The gate's product is a linear with f32 outputs; here a warp per row turns them into scores and chooses.

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

/// The best of a warp: highest score, lower expert on a tie. An expert of -1 loses against any.
__device__ __forceinline__ void warp_best(float& score, int& expert) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(~0u, score, distance);
    const int other_expert = __shfl_xor_sync(~0u, expert, distance);
    const bool better = other > score || (other == score && other_expert < expert);
    if (other_expert >= 0 && (expert < 0 || better)) {
      score = other;
      expert = other_expert;
    }
  }
}

/// Shared memory: a warp's scores [experts] and, behind all warps' scores, its taken flags [experts].
__global__ void __launch_bounds__(32 * kWarps) choose(const __grid_constant__ Args a) {
  extern __shared__ float shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = blockIdx.x * kWarps + warp;
  if (row >= a.rows) return;
  float* scores = shared + warp * a.expert_count;
  auto* taken =
      reinterpret_cast<uint8_t*>(shared + kWarps * a.expert_count) + warp * a.expert_count;
  const bool image = a.image_mask != nullptr && a.image_mask[row] != 0;
  const float* bias = image ? a.bias_image : a.bias;
  for (int e = lane; e < a.expert_count; e += 32) {
    const float v = a.gate[row * int64_t{a.expert_count} + e];
    scores[e] = sqrtf(v > 20.0f ? v : log1pf(expf(v)));
    taken[e] = 0;
  }
  __syncwarp();
  float sum = 0;
  int32_t* chosen = a.experts + row * int64_t{a.top};
  for (int i = 0; i < a.top; ++i) {
    float best = 0;
    int expert = -1;
    for (int e = lane; e < a.expert_count; e += 32) {
      const float score = scores[e] + bias[e];
      if (taken[e] == 0 && (expert < 0 || score > best)) {
        best = score;
        expert = e;
      }
    }
    warp_best(best, expert);
    sum += scores[expert];
    if (lane == 0) {
      chosen[i] = expert;
      taken[expert] = 1;
    }
    __syncwarp();
  }
  sum += 1e-20f;
  for (int i = lane; i < a.top; i += 32) {
    a.weights[row * int64_t{a.top} + i] = scores[chosen[i]] / sum * a.route_scale;
  }
}

}  // namespace

Status moe_gate(KernelContext& ctx, const MoeGateParams& p) {
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
  const size_t shared = static_cast<size_t>(kWarps * p.expert_count) * (sizeof(float) + 1);
  CEDAR_CHECK_OK(allow_shared("moe_gate", choose, shared));
  choose<<<static_cast<unsigned>(ceil_div(p.rows, kWarps)), 32 * kWarps, shared, stream_of(ctx)>>>(
      a);
  return launched("moe_gate");
}

}  // namespace cedar::kernels::cuda
