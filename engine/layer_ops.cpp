#include "engine/layer_ops.h"

#include <algorithm>
#include <cmath>

#include "kernels/kv_write.h"
#include "kernels/linear.h"
#include "kernels/query_window.h"
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

kernels::KvWriteParams window_write(const model::ModelConfig& config, const LayerWeights& weights,
                                    const Bf16* k, const int64_t* positions, const float* inv_freq,
                                    int64_t rows, uint8_t* packed) {
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
  return write;
}

bool on_gpu(const kernels::KernelContext& ctx) { return ctx.device.kind == DeviceKind::cuda; }

// Ends wait for the next sublayer while memory for them is small.
constexpr int64_t kMostOpenRows = 256;

uint8_t* reserve_windows(kernels::KernelContext& ctx, const model::ModelConfig& config,
                         int64_t rows) {
  return ctx.arena->allocate<uint8_t>(
      rows * kernels::packed_row_bytes(kernels::RowFormat::q8, config.head_dim));
}

void reserve_slots(kernels::KernelContext& ctx, int64_t top, int64_t d, int64_t rows,
                   SublayerEnd& end) {
  end.slots.out = ctx.arena->allocate<Bf16>(rows * (top + 1) * d);
  end.slots.row_slots = ctx.arena->allocate<int32_t>(rows * top);
}

SublayerEnd reserve_end(kernels::KernelContext& ctx, const model::ModelConfig& config,
                        int64_t rows) {
  const int64_t copies = config.hc_mult, d = config.hidden_size;
  SublayerEnd end;
  end.y = ctx.arena->allocate<Bf16>(rows * d);
  end.post = ctx.arena->allocate<float>(rows * copies);
  end.mix = ctx.arena->allocate<float>(rows * copies * copies);
  end.window_rows = reserve_windows(ctx, config, rows);
  return end;
}

/// The quantised input of a linear: made by hc_pre on a GPU.
Result<kernels::Q8Rows> quantised(kernels::KernelContext& ctx, const SublayerInput& in,
                                  int64_t rows, int64_t columns) {
  if (in.u_values == nullptr) return kernels::quantize_q8(ctx, in.u, rows, columns);
  kernels::Q8Rows q;
  q.values = in.u_values;
  return q;
}

}  // namespace

Status close_sublayer(kernels::KernelContext& ctx, StreamState& state) {
  if (!state.open) return {};
  const kernels::HcPostParams after = *state.open;
  state.open.reset();
  return kernels::hc_post(ctx, after);
}

Status run_sublayer(kernels::KernelContext& ctx, const model::ModelConfig& config,
                    const HcLayerWeights& hc, const DeviceTensor& norm, StreamState& state,
                    int64_t rows, const Sublayer& sublayer, bool open) {
  const int64_t copies = config.hc_mult;
  float* pre_out = ctx.arena->allocate<float>(rows * copies);
  const bool stays_open = open && on_gpu(ctx) && rows <= kMostOpenRows;
  if (stays_open && state.ends[0].y == nullptr) {
    for (SublayerEnd& end : state.ends) {
      end = reserve_end(ctx, config, rows);
      reserve_slots(ctx, config.num_experts_per_tok, config.hidden_size, rows, end);
    }
  }
  ArenaScope scope(*ctx.arena);
  SublayerEnd one_call;
  if (!stays_open) one_call = reserve_end(ctx, config, rows);
  SublayerEnd& end = stays_open ? state.ends[static_cast<size_t>(state.turn)] : one_call;
  state.turn ^= 1;
  end.ring = {};
  end.summed = true;
  SublayerInput in;
  Bf16* u = ctx.arena->allocate<Bf16>(rows * config.hidden_size);
  in.u = u;
  if (on_gpu(ctx)) in.u_values = ctx.arena->allocate<Bf16>(rows * config.hidden_size);

  kernels::HcPreParams before;
  before.x = state.x;
  before.pre_in = state.pre;
  before.weights = hc.view();
  before.norm_weight = norm.as<Bf16>();
  before.norm_eps = config.rms_norm_eps;
  before.hc_eps = config.hc_eps;
  before.sinkhorn_iterations = config.hc_sinkhorn_iters;
  before.u = u;
  before.u_values = in.u_values;
  before.pre = pre_out;
  before.post = end.post;
  before.mix = end.mix;
  before.rows = rows;
  before.copies = copies;
  before.d = config.hidden_size;
  if (state.open) before.after = &*state.open;
  CEDAR_CHECK_OK(kernels::hc_pre(ctx, before));
  state.open.reset();

  CEDAR_CHECK_OK(sublayer(in, end));

  kernels::HcPostParams after;
  after.x = state.x;
  after.y = end.y;
  after.post = end.post;
  after.mix = end.mix;
  after.x_out = state.x;
  after.rows = rows;
  after.copies = copies;
  after.d = config.hidden_size;
  if (!end.summed) after.slots = &end.slots;
  if (end.ring.chunk_rows != nullptr) after.ring = &end.ring;
  state.pre = pre_out;
  if (!stays_open) return kernels::hc_post(ctx, after);
  state.open = after;
  return {};
}

Result<uint8_t*> window_rows(kernels::KernelContext& ctx, const model::ModelConfig& config,
                             const LayerWeights& weights, const kernels::Q8Rows& x,
                             const int64_t* positions, const float* inv_freq, int64_t rows,
                             uint8_t* window_memory) {
  uint8_t* packed = window_memory != nullptr ? window_memory : reserve_windows(ctx, config, rows);
  ArenaScope scope(*ctx.arena);
  Bf16* k = ctx.arena->allocate<Bf16>(rows * config.head_dim);
  CEDAR_CHECK_OK(linear_q8(ctx, weights.wkv, x, k, rows));
  CEDAR_CHECK_OK(
      kernels::kv_write(ctx, window_write(config, weights, k, positions, inv_freq, rows, packed)));
  return packed;
}

namespace {

/// The operations of project() one by one.
Status project_apart(kernels::KernelContext& ctx, const model::ModelConfig& config,
                     const LayerWeights& weights, const kernels::Q8Rows& xq,
                     const int64_t* positions, const float* inv_freq, int64_t rows,
                     uint8_t* window_memory, Projections& out) {
  CEDAR_TRY(out.window_rows,
            window_rows(ctx, config, weights, xq, positions, inv_freq, rows, window_memory));
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
  return {};
}

/// Both first projections in a launch, and what follows them in another.
Status project_together(kernels::KernelContext& ctx, const model::ModelConfig& config,
                        const LayerWeights& weights, const kernels::Q8Rows& xq,
                        const int64_t* positions, const float* inv_freq, int64_t rows,
                        uint8_t* window_memory, Projections& out) {
  Bf16* qr = ctx.arena->allocate<Bf16>(rows * config.q_lora_rank);
  Bf16* k = ctx.arena->allocate<Bf16>(rows * config.head_dim);
  out.window_rows = window_memory != nullptr ? window_memory : reserve_windows(ctx, config, rows);
  out.qr.values = ctx.arena->allocate<Bf16>(rows * config.q_lora_rank);
  kernels::LinearParams both;
  both.weight = &weights.wq_a;
  both.also = &weights.wkv;
  both.xq = xq;
  both.y = qr;
  both.y_stride = config.q_lora_rank;
  both.also_y = k;
  both.also_stride = config.head_dim;
  both.rows = rows;
  CEDAR_CHECK_OK(kernels::linear(ctx, both));
  kernels::QueryWindowParams finish;
  finish.norm.x = finish.norm.y = qr;
  finish.norm.x_stride = finish.norm.y_stride = config.q_lora_rank;
  finish.norm.weight = weights.q_norm.as<Bf16>();
  finish.norm.rows = rows;
  finish.norm.columns = config.q_lora_rank;
  finish.norm.eps = config.rms_norm_eps;
  finish.quantised = out.qr;
  finish.window = window_write(config, weights, k, positions, inv_freq, rows, out.window_rows);
  return kernels::query_window(ctx, finish);
}

}  // namespace

Result<Projections> project(kernels::KernelContext& ctx, const model::ModelConfig& config,
                            const LayerWeights& weights, const SublayerInput& in,
                            const int64_t* positions, const float* inv_freq, int64_t rows,
                            uint8_t* window_memory) {
  Projections out;
  CEDAR_TRY(const kernels::Q8Rows xq, quantised(ctx, in, rows, config.hidden_size));
  // A weight that no tile ends in cannot be followed by another.
  if (on_gpu(ctx) && config.q_lora_rank % 64 == 0) {
    CEDAR_CHECK_OK(
        project_together(ctx, config, weights, xq, positions, inv_freq, rows, window_memory, out));
  } else {
    CEDAR_CHECK_OK(
        project_apart(ctx, config, weights, xq, positions, inv_freq, rows, window_memory, out));
  }
  const int64_t q_columns = config.num_attention_heads * config.head_dim;
  out.q = ctx.arena->allocate<Bf16>(rows * q_columns);
  CEDAR_CHECK_OK(linear_q8(ctx, weights.wq_b, out.qr, out.q, rows));
  if (on_gpu(ctx)) return out;
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
  p.rotate_q = on_gpu(ctx);
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
    group.quantised_y = on_gpu(ctx) && products == 1;
    CEDAR_CHECK_OK(kernels::linear(ctx, group));
  }
  kernels::Q8Rows rq;
  rq.values = r;
  if (!on_gpu(ctx) || products != 1) {
    CEDAR_TRY(rq, kernels::quantize_q8(ctx, r, in.rows, r_columns));
  }
  return linear_q8(ctx, weights.wo_b, rq, y, in.rows);
}

Result<RoutedExperts> feed_forward(kernels::KernelContext& ctx, const model::ModelConfig& config,
                                   const LayerWeights& weights, int64_t top,
                                   const uint8_t* image_mask, const SublayerInput& in, int64_t rows,
                                   SublayerEnd& end) {
  auto* experts = ctx.arena->allocate<int32_t>(rows * top);
  auto* expert_weights = ctx.arena->allocate<float>(rows * top);
  // The end of a sublayer sums the slots itself.
  if (on_gpu(ctx) && end.post != nullptr && end.slots.out == nullptr) {
    reserve_slots(ctx, top, config.hidden_size, rows, end);
  }
  ArenaScope scope(*ctx.arena);
  kernels::MoeGateParams gate;
  gate.x = in.u;
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
  if (!on_gpu(ctx)) CEDAR_CHECK_OK(kernels::moe_gate(ctx, gate));

  kernels::MoeExpertsParams p;
  CEDAR_TRY(p.xq, quantised(ctx, in, rows, config.hidden_size));
  p.experts = experts;
  p.weights = expert_weights;
  p.routed = weights.experts;
  p.shared = &weights.shared;
  if (on_gpu(ctx)) {
    p.table = &weights.expert_table;
    p.route = &gate;
  }
  if (end.slots.out != nullptr) {
    end.summed = false;
    end.slots.rows = rows;
    end.slots.top = top;
    end.slots.shared = true;
    p.slots = &end.slots;
  }
  p.clamp = config.swiglu_limit;
  p.y = end.y;
  p.rows = rows;
  p.d = config.hidden_size;
  p.top = top;
  CEDAR_CHECK_OK(kernels::moe_experts(ctx, p));
  return RoutedExperts{experts, expert_weights};
}

}  // namespace cedar::engine
