#include <algorithm>

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/linear_ops.h"

namespace cedar::kernels::cpu {
namespace {

/// `scores` [experts] of one row, unbiased. `selection` [experts] is scratch.
void route_row(const float* scores, const float* bias, float* selection, const MoeGateParams& p,
               int32_t* experts, float* weights) {
  for (int64_t e = 0; e < p.expert_count; ++e) selection[e] = scores[e] + bias[e];
  // Insertion into a list of `top`: strictly greater keeps the lower expert in front on a tie.
  int64_t filled = 0;
  for (int64_t e = 0; e < p.expert_count; ++e) {
    int64_t at = filled;
    while (at > 0 && selection[e] > selection[experts[at - 1]]) --at;
    if (at == p.top) continue;
    filled = std::min(filled + 1, p.top);
    std::copy_backward(experts + at, experts + filled - 1, experts + filled);
    experts[at] = static_cast<int32_t>(e);
  }
  float sum = 0;
  for (int64_t i = 0; i < p.top; ++i) sum += scores[experts[i]];
  sum += 1e-20f;
  for (int64_t i = 0; i < p.top; ++i) weights[i] = scores[experts[i]] / sum * p.route_scale;
}

}  // namespace

Status moe_gate(KernelContext& ctx, const MoeGateParams& p) {
  const ArenaScope scope(*ctx.arena);
  const IsaKernels& isa = isa_kernels(ctx.isa);
  auto* scores = ctx.arena->allocate<float>(p.rows * p.expert_count);
  auto* selection = ctx.arena->allocate<float>(p.rows * p.expert_count);
  LinearParams gate;
  gate.weight = p.gate;
  gate.x = p.x;
  gate.x_stride = p.d;
  gate.y = scores;
  gate.y_stride = p.expert_count;
  gate.y_dtype = DType::f32;
  gate.rows = p.rows;
  CEDAR_CHECK_OK(cpu::linear(ctx, gate));
  ctx.pool->parallel_for(p.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const bool image = p.image_mask != nullptr && p.image_mask[row] != 0;
      float* row_scores = scores + row * p.expert_count;
      isa.route_scores(row_scores, p.expert_count, row_scores);
      route_row(row_scores, image ? p.bias_image : p.bias, selection + row * p.expert_count, p,
                p.experts + row * p.top, p.weights + row * p.top);
    }
  });
  return {};
}

}  // namespace cedar::kernels::cpu
