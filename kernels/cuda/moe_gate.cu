// The gate's product is a linear with f32 outputs; here a warp per row turns them into scores and chooses.

#include <string>

#include "core/units.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/choose_experts.h"
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

template <int kMost>
__global__ void __launch_bounds__(32 * kWarps) choose(const __grid_constant__ Args a) {
  const int row = blockIdx.x * kWarps + threadIdx.x / 32;
  if (row >= a.rows) return;
  const bool image = a.image_mask != nullptr && a.image_mask[row] != 0;
  choose_experts<kMost>(a.gate + row * int64_t{a.expert_count}, image ? a.bias_image : a.bias,
                        a.expert_count, a.top, a.route_scale, a.experts + row * int64_t{a.top},
                        a.weights + row * int64_t{a.top});
}

template <int kMost>
void launch(const Args& a, cudaStream_t stream) {
  choose<kMost><<<static_cast<unsigned>(ceil_div(a.rows, kWarps)), 32 * kWarps, 0, stream>>>(a);
}

}  // namespace

Result<float*> gate_products(KernelContext& ctx, const MoeGateParams& p) {
  if (p.expert_count > 1024) {
    return make_error(Errc::unsupported,
                      "moe_gate: more than 1024 experts, got " + std::to_string(p.expert_count));
  }
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
  return gate;
}

Status moe_gate(KernelContext& ctx, const MoeGateParams& p) {
  const ArenaScope scope(*ctx.arena);
  CEDAR_TRY(float* gate, gate_products(ctx, p));

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
