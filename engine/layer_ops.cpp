#include "engine/layer_ops.h"

#include <cmath>

#include "kernels/kv_write.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/sparse_attention.h"

namespace cedar::engine {
namespace {

Status linear_q8(kernels::KernelContext& ctx, const kernels::PackedWeight& weight,
                 const kernels::Q8Rows& x, Bf16* y, int64_t rows) {
  kernels::LinearParams p;
  p.weight = &weight;
  p.xq = x;
  p.y = y;
  p.y_stride = weight.out;
  p.rows = rows;
  return kernels::linear(ctx, p);
}

}  // namespace

Status run_sublayer(kernels::KernelContext& ctx, const model::ModelConfig& config,
                    const HcLayerWeights& hc, const DeviceTensor& norm, StreamState& state,
                    int64_t rows, const Sublayer& sublayer) {
  const int64_t copies = config.hc_mult;
  float* pre_out = ctx.arena->allocate<float>(rows * copies);
  {
    ArenaScope scope(*ctx.arena);
    Bf16* u = ctx.arena->allocate<Bf16>(rows * config.hidden_size);
    Bf16* y = ctx.arena->allocate<Bf16>(rows * config.hidden_size);
    float* post = ctx.arena->allocate<float>(rows * copies);
    float* mix = ctx.arena->allocate<float>(rows * copies * copies);

    kernels::HcPreParams before;
    before.x = state.x;
    before.pre_in = state.pre;
    before.weights = hc.view();
    before.norm_weight = norm.as<Bf16>();
    before.norm_eps = config.rms_norm_eps;
    before.hc_eps = config.hc_eps;
    before.sinkhorn_iterations = config.hc_sinkhorn_iters;
    before.u = u;
    before.pre = pre_out;
    before.post = post;
    before.mix = mix;
    before.rows = rows;
    before.copies = copies;
    before.d = config.hidden_size;
    CEDAR_CHECK_OK(kernels::hc_pre(ctx, before));

    CEDAR_CHECK_OK(sublayer(u, y));

    kernels::HcPostParams after;
    after.x = state.x;
    after.y = y;
    after.post = post;
    after.mix = mix;
    after.x_out = state.x;
    after.rows = rows;
    after.copies = copies;
    after.d = config.hidden_size;
    CEDAR_CHECK_OK(kernels::hc_post(ctx, after));
  }
  state.pre = pre_out;
  return {};
}

Result<uint8_t*> window_rows(kernels::KernelContext& ctx, const model::ModelConfig& config,
                             const LayerWeights& weights, const kernels::Q8Rows& x,
                             const int64_t* positions, const float* inv_freq, int64_t rows) {
  const int64_t row_bytes = kernels::packed_row_bytes(kernels::RowFormat::q8, config.head_dim);
  auto* packed = ctx.arena->allocate<uint8_t>(rows * row_bytes);
  ArenaScope scope(*ctx.arena);
  Bf16* k = ctx.arena->allocate<Bf16>(rows * config.head_dim);
  CEDAR_CHECK_OK(linear_q8(ctx, weights.wkv, x, k, rows));
  kernels::KvWriteParams write;
  write.format = kernels::RowFormat::q8;
  write.x = k;
  write.x_stride = config.head_dim;
  write.norm_weight = weights.kv_norm.as<Bf16>();
  write.eps = config.rms_norm_eps;
  write.positions = positions;
  write.inv_freq = inv_freq;
  write.rows = rows;
  write.columns = config.head_dim;
  write.rotary_dim = config.qk_rope_head_dim;
  write.dense = packed;
  CEDAR_CHECK_OK(kernels::kv_write(ctx, write));
  return packed;
}

Result<Projections> project(kernels::KernelContext& ctx, const model::ModelConfig& config,
                            const LayerWeights& weights, const Bf16* u, const int64_t* positions,
                            const float* inv_freq, int64_t rows) {
  Projections out;
  CEDAR_TRY(const kernels::Q8Rows xq, kernels::quantize_q8(ctx, u, rows, config.hidden_size));
  CEDAR_TRY(out.window_rows, window_rows(ctx, config, weights, xq, positions, inv_freq, rows));

  Bf16* qr = ctx.arena->allocate<Bf16>(rows * config.q_lora_rank);
  CEDAR_CHECK_OK(linear_q8(ctx, weights.wq_a, xq, qr, rows));
  kernels::RmsNormParams norm;
  norm.x = qr;
  norm.x_stride = config.q_lora_rank;
  norm.weight = weights.q_norm.as<Bf16>();
  norm.y = qr;
  norm.y_stride = config.q_lora_rank;
  norm.rows = rows;
  norm.columns = config.q_lora_rank;
  norm.eps = config.rms_norm_eps;
  CEDAR_CHECK_OK(kernels::rms_norm(ctx, norm));
  CEDAR_TRY(out.qr, kernels::quantize_q8(ctx, qr, rows, config.q_lora_rank));

  const int64_t q_columns = config.num_attention_heads * config.head_dim;
  out.q = ctx.arena->allocate<Bf16>(rows * q_columns);
  CEDAR_CHECK_OK(linear_q8(ctx, weights.wq_b, out.qr, out.q, rows));
  kernels::RopeParams rotate;
  rotate.x = out.q;
  rotate.row_stride = q_columns;
  rotate.head_stride = config.head_dim;
  rotate.positions = positions;
  rotate.inv_freq = inv_freq;
  rotate.rows = rows;
  rotate.heads = config.num_attention_heads;
  rotate.head_dim = config.head_dim;
  rotate.rotary_dim = config.qk_rope_head_dim;
  CEDAR_CHECK_OK(kernels::rope(ctx, rotate));
  return out;
}

Status attend(kernels::KernelContext& ctx, const model::ModelConfig& config,
              const LayerWeights& weights, const AttendInput& in, Bf16* y) {
  ArenaScope scope(*ctx.arena);
  const int64_t o_columns = config.num_attention_heads * config.head_dim;
  Bf16* o = ctx.arena->allocate<Bf16>(in.rows * o_columns);
  kernels::SparseAttentionParams p;
  p.q = in.projections->q;
  p.sink = weights.sink.as<float>();
  p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  p.window = in.spans;
  p.rings = in.rings;
  p.chunk_rows = in.projections->window_rows;
  p.topk = in.global.topk;
  p.k = in.global.k;
  p.global = in.global.rows;
  p.sequences = in.global.sequences;
  p.inv_freq = in.inv_freq;
  p.positions = in.positions;
  p.rotary_dim = config.qk_rope_head_dim;
  p.o = o;
  p.rows = in.rows;
  p.heads = config.num_attention_heads;
  p.head_dim = config.head_dim;
  CEDAR_CHECK_OK(kernels::sparse_attention(ctx, p));

  // wo_a is not activation-quantised: a bf16 product per group of heads (spec/model.md 7.9).
  const int64_t group_in = o_columns / config.o_groups;
  const int64_t r_columns = config.o_groups * config.o_lora_rank;
  Bf16* r = ctx.arena->allocate<Bf16>(in.rows * r_columns);
  const auto products = static_cast<int64_t>(weights.wo_a.size());
  for (int64_t g = 0; g < products; ++g) {
    kernels::LinearParams group;
    group.weight = &weights.wo_a[static_cast<size_t>(g)];
    group.groups = config.o_groups / products;
    group.x = o + g * group_in;
    group.x_stride = o_columns;
    group.y = r + g * config.o_lora_rank;
    group.y_stride = r_columns;
    group.rows = in.rows;
    CEDAR_CHECK_OK(kernels::linear(ctx, group));
  }
  CEDAR_TRY(const kernels::Q8Rows rq, kernels::quantize_q8(ctx, r, in.rows, r_columns));
  return linear_q8(ctx, weights.wo_b, rq, y, in.rows);
}

Result<RoutedExperts> feed_forward(kernels::KernelContext& ctx, const model::ModelConfig& config,
                                   const LayerWeights& weights, int64_t top,
                                   const uint8_t* image_mask, const Bf16* u, int64_t rows,
                                   Bf16* y) {
  auto* experts = ctx.arena->allocate<int32_t>(rows * top);
  auto* expert_weights = ctx.arena->allocate<float>(rows * top);
  ArenaScope scope(*ctx.arena);
  kernels::MoeGateParams gate;
  gate.x = u;
  gate.gate = &weights.gate;
  gate.bias = weights.gate_bias.as<float>();
  gate.bias_image = weights.gate_bias_image.as<float>();
  gate.image_mask = image_mask;
  gate.experts = experts;
  gate.weights = expert_weights;
  gate.rows = rows;
  gate.d = config.hidden_size;
  gate.expert_count = static_cast<int64_t>(weights.experts.size());
  gate.top = top;
  gate.route_scale = config.routed_scaling_factor;
  CEDAR_CHECK_OK(kernels::moe_gate(ctx, gate));

  kernels::MoeExpertsParams p;
  CEDAR_TRY(p.xq, kernels::quantize_q8(ctx, u, rows, config.hidden_size));
  p.experts = experts;
  p.weights = expert_weights;
  p.routed = weights.experts;
  p.shared = &weights.shared;
  if (ctx.device.kind == DeviceKind::cuda) p.table = &weights.expert_table;
  p.clamp = config.swiglu_limit;
  p.y = y;
  p.rows = rows;
  p.d = config.hidden_size;
  p.top = top;
  CEDAR_CHECK_OK(kernels::moe_experts(ctx, p));
  return RoutedExperts{experts, expert_weights};
}

}  // namespace cedar::engine
