#include "engine/forward.h"

#include <algorithm>
#include <vector>

#include "engine/engram_rows.h"
#include "engine/upload.h"
#include "kernels/compress.h"
#include "kernels/embed.h"
#include "kernels/engram.h"
#include "kernels/kv_write.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"

namespace cedar::engine {
namespace {

Status linear_bf16_in(kernels::KernelContext& ctx, const kernels::PackedWeight& weight,
                      const Bf16* x, void* y, DType y_dtype, int64_t rows) {
  kernels::LinearParams p;
  p.weight = &weight;
  p.x = x;
  p.x_stride = weight.in;
  p.y = y;
  p.y_stride = weight.out;
  p.y_dtype = y_dtype;
  p.rows = rows;
  return kernels::linear(ctx, p);
}

}  // namespace

Forward::Forward(const LoadedModel& model, SequenceStore& store, EngramSource& engram,
                 const NumericOptions& numeric, kernels::KernelContext& ctx,
                 ForwardObserver* observer, const ShardedKeys* sharded)
    : model_(model),
      store_(store),
      engram_(engram),
      numeric_(numeric),
      ctx_(ctx),
      observer_(observer),
      sharded_(sharded) {}

const LayerWeights& Forward::weights(LayerId layer) const {
  const auto& held = model_.layers[static_cast<size_t>(layer)];
  CEDAR_ASSERT(held != nullptr, "layer " + std::to_string(layer) + " is not part of this role");
  return *held;
}

Result<StreamState> Forward::embed(const StepBatch& batch, const int32_t* override_index,
                                   const Bf16* image_rows) {
  const int64_t copies = model_.config.hc_mult;
  StreamState state;
  state.x = ctx_.arena->allocate<Bf16>(batch.rows * copies * model_.config.hidden_size);
  kernels::EmbedParams p;
  p.table = model_.embed.as<Bf16>();
  p.ids = batch.ids;
  p.override_index = override_index;
  p.override_rows = image_rows;
  p.x = state.x;
  p.rows = batch.rows;
  p.copies = copies;
  p.d = model_.config.hidden_size;
  CEDAR_CHECK_OK(kernels::embed(ctx_, p));
  state.pre = batch.fresh_pre;
  return state;
}

Status Forward::run_layers(LayerId first, LayerId last, const StepBatch& batch,
                           SharedAttention& shared, StreamState& state, Bf16* main_hidden) {
  const auto& targets = model_.config.dspark_target_layer_ids;
  for (LayerId id = first; id < last; ++id) {
    if (plan(id).has_engram) {
      CEDAR_CHECK_OK(close_sublayer(ctx_, state));
      CEDAR_CHECK_OK(engram(id, batch, state.x));
    }
    if (main_hidden != nullptr && plan(id).is_draft_target) {
      CEDAR_CHECK_OK(close_sublayer(ctx_, state));
      const auto part = std::find(targets.begin(), targets.end(), id) - targets.begin();
      kernels::HcMeanParams mean;
      mean.x = state.x;
      mean.y = main_hidden + part * model_.config.hidden_size;
      mean.y_stride = static_cast<int64_t>(targets.size()) * model_.config.hidden_size;
      mean.rows = batch.rows;
      mean.copies = model_.config.hc_mult;
      mean.d = model_.config.hidden_size;
      CEDAR_CHECK_OK(kernels::hc_mean(ctx_, mean));
    }
    CEDAR_CHECK_OK(open_layer(id, batch, shared, state));
  }
  return close_sublayer(ctx_, state);
}

Status Forward::layer(LayerId id, const StepBatch& batch, SharedAttention& shared,
                      StreamState& state) {
  CEDAR_CHECK_OK(open_layer(id, batch, shared, state));
  return close_sublayer(ctx_, state);
}

Status Forward::open_layer(LayerId id, const StepBatch& batch, SharedAttention& shared,
                           StreamState& state) {
  const LayerWeights& w = weights(id);
  const SelectionStorage storage = reserve_selection(ctx_, model_.config, plan(id), batch);
  const auto attention = [&](const SublayerInput& in, SublayerEnd& end) {
    return attend_layer(id, batch, shared, storage, in, end);
  };
  const auto experts = [&](const SublayerInput& in, SublayerEnd& end) {
    return route_layer(id, batch, in, end);
  };
  CEDAR_CHECK_OK(run_sublayer(ctx_, model_.config, w.hc_attn, w.attn_norm, state, batch.rows,
                              attention, true));
  CEDAR_CHECK_OK(
      run_sublayer(ctx_, model_.config, w.hc_ffn, w.ffn_norm, state, batch.rows, experts, true));
  if (observer_ == nullptr) return {};
  CEDAR_CHECK_OK(close_sublayer(ctx_, state));
  const int64_t copies = model_.config.hc_mult;
  CEDAR_TRY(const auto x,
            HostValues<Bf16>::read(ctx_, state.x, batch.rows * copies * model_.config.hidden_size));
  CEDAR_TRY(const auto pre, HostValues<float>::read(ctx_, state.pre, batch.rows * copies));
  observer_->on_layer(id, x.data(), pre.data(), batch.rows);
  return {};
}

Status Forward::attention(LayerId id, const StepBatch& batch, SharedAttention& shared,
                          const Bf16* u, Bf16* y) {
  SublayerInput in;
  in.u = u;
  SublayerEnd end;
  end.y = y;
  CEDAR_CHECK_OK(attend_layer(id, batch, shared,
                              reserve_selection(ctx_, model_.config, plan(id), batch), in, end));
  return kernels::ring_write(ctx_, end.ring);
}

Status Forward::attend_layer(LayerId id, const StepBatch& batch, SharedAttention& shared,
                             const SelectionStorage& storage, const SublayerInput& input,
                             SublayerEnd& end) {
  const model::LayerPlan& layer_plan = plan(id);
  const LayerWeights& w = weights(id);
  const bool window_only = layer_plan.mode == model::LayerMode::window_only;
  AttendInput in;
  in.inv_freq = (window_only ? model_.inv_freq_window : model_.inv_freq_compressed).as<float>();
  in.positions = batch.positions;
  in.rows = batch.rows;
  in.rings = store_.rings(id);
  in.spans = batch.spans;
  CEDAR_TRY(const Projections projections, project(ctx_, model_.config, w, input, batch.positions,
                                                   in.inv_freq, batch.rows, end.window_rows));
  in.projections = &projections;

  if (!window_only) {
    if (layer_plan.writes_kv()) {
      const SharedKv own = source_rows(model_.plan.source_index(id), batch);
      CEDAR_CHECK_OK(write_global(layer_plan, batch, own, input.u));
      shared.publish(id, own);
    }
    CEDAR_TRY(const SharedKv kv, shared.kv(id, *layer_plan.kv_source));
    if (layer_plan.scores()) {
      SelectionInput select;
      select.plan = &layer_plan;
      select.weights = &w;
      select.batch = &batch;
      select.u = input.u;
      select.qr = projections.qr;
      select.kv = kv;
      select.keys = index_keys(layer_plan, batch, kv);
      select.inv_freq = in.inv_freq;
      select.source = static_cast<int32_t>(model_.plan.source_index(*layer_plan.kv_source));
      select.sharded = sharded_;
      select.storage = storage;
      CEDAR_CHECK_OK(select_rows(ctx_, model_.config, numeric_, select, shared, observer_));
    }
    CEDAR_TRY(const SharedTopk list, shared.topk(id, *layer_plan.index_source));
    in.global.topk = list.indices;
    in.global.k = list.k;
    in.global.rows = kv.main;
    in.global.sequences = batch.row_sequence;
  }
  CEDAR_CHECK_OK(attend(ctx_, model_.config, w, in, end.y));

  kernels::RingWriteParams& keep = end.ring;
  keep.rings = in.rings;
  keep.chunk_rows = projections.window_rows;
  keep.slots = batch.ring_slots;
  keep.positions = batch.positions;
  keep.rows = batch.rows;
  return {};
}

SharedKv Forward::source_rows(int64_t source, const StepBatch& batch) {
  SharedKv kv;
  kv.main = store_.main_rows(source);
  kv.index = store_.index_rows(source);
  for (kernels::PagedRows* rows : {&kv.main, &kv.index}) {
    rows->page_table = batch.page_table;
    rows->max_pages = batch.max_pages;
  }
  kv.ratio = model_.plan.kv_sources[static_cast<size_t>(source)].ratio;
  return kv;
}

kernels::PagedRows Forward::index_keys(const model::LayerPlan& layer_plan, const StepBatch& batch,
                                       const SharedKv& kv) {
  if (!numeric_.compat_stale_index_key || layer_plan.ratio <= 1) return kv.index;
  // The reference publishes keys only when a group completes; on other one-token steps its single slot
  // still holds what the last ratio-1 source left there a step ago.
  CEDAR_ASSERT(batch.sequences.size() == 1, "compat_stale_index_key works on one sequence a step");
  const BatchSequence& sequence = batch.sequences.front();
  const bool stale = sequence.rows() == 1 && sequence.end() % layer_plan.ratio != 0;
  if (!stale) return kv.index;
  return source_rows(model_.plan.source_index(model_.plan.boundary), batch).index;
}

Status Forward::write_global(const model::LayerPlan& layer_plan, const StepBatch& batch,
                             const SharedKv& kv, const Bf16* u) {
  ArenaScope scope(*ctx_.arena);
  const LayerWeights& w = weights(layer_plan.id);
  const CompressorWeights& compressor = *w.compressor;
  const int64_t columns = model_.config.head_dim;
  if (layer_plan.ratio == 1) {
    Bf16* latent = ctx_.arena->allocate<Bf16>(batch.rows * columns);
    CEDAR_CHECK_OK(linear_bf16_in(ctx_, compressor.wkv, u, latent, DType::bf16, batch.rows));
    kernels::RmsNormParams norm;
    norm.x = latent;
    norm.x_stride = columns;
    norm.weight = compressor.norm.as<Bf16>();
    norm.y = latent;
    norm.y_stride = columns;
    norm.rows = batch.rows;
    norm.columns = columns;
    norm.eps = model_.config.rms_norm_eps;
    CEDAR_CHECK_OK(kernels::rms_norm(ctx_, norm));
    return write_rows(w, kv, latent, batch.positions, batch.row_sequence, batch.boundary_targets,
                      batch.rows);
  }

  const int64_t source = model_.plan.source_index(layer_plan.id);
  const CompressPlan& groups = batch.compress_for(layer_plan.ratio);
  float* values = ctx_.arena->allocate<float>(batch.rows * columns);
  float* gates = ctx_.arena->allocate<float>(batch.rows * columns);
  CEDAR_CHECK_OK(linear_bf16_in(ctx_, compressor.wkv, u, values, DType::f32, batch.rows));
  CEDAR_CHECK_OK(linear_bf16_in(ctx_, *compressor.wgate, u, gates, DType::f32, batch.rows));
  if (groups.groups > 0) {
    Bf16* latent = ctx_.arena->allocate<Bf16>(groups.groups * columns);
    kernels::CompressParams p;
    p.kv = values;
    p.gate = gates;
    p.members = groups.members;
    p.pending_kv = store_.pending_kv(source);
    p.pending_gate = store_.pending_gate(source);
    p.pending_rows = groups.pending_rows;
    p.norm_weight = compressor.norm.as<Bf16>();
    p.eps = model_.config.rms_norm_eps;
    p.latent = latent;
    p.groups = groups.groups;
    p.ratio = layer_plan.ratio;
    p.columns = columns;
    CEDAR_CHECK_OK(kernels::compress(ctx_, p));
    CEDAR_CHECK_OK(write_rows(w, kv, latent, groups.positions, groups.sequences, groups.targets,
                              groups.groups));
  }
  // Only now may the open groups be overwritten: compress() has read the previous ones.
  kernels::GatherRowsParams keep;
  keep.index = groups.pending_target;
  keep.rows = batch.rows;
  keep.row_bytes = columns * int64_t{4};
  keep.src = values;
  keep.dst = store_.pending_kv(source);
  CEDAR_CHECK_OK(kernels::scatter_rows(ctx_, keep));
  keep.src = gates;
  keep.dst = store_.pending_gate(source);
  return kernels::scatter_rows(ctx_, keep);
}

Status Forward::write_rows(const LayerWeights& w, const SharedKv& kv, const Bf16* latent,
                           const int64_t* positions, const int32_t* sequences,
                           const int64_t* targets, int64_t rows) {
  // The index key comes from the latent before rotation (spec/model.md 7.4).
  const int64_t key_columns = model_.config.index_head_dim;
  Bf16* keys = ctx_.arena->allocate<Bf16>(rows * key_columns);
  CEDAR_CHECK_OK(linear_bf16_in(ctx_, w.index_key->wk, latent, keys, DType::bf16, rows));
  kernels::KvWriteParams write;
  write.format = kernels::RowFormat::q4x;
  write.x = keys;
  write.x_stride = key_columns;
  write.norm_weight = w.index_key->norm.as<Bf16>();
  write.eps = model_.config.rms_norm_eps;
  write.positions = positions;
  write.inv_freq = model_.inv_freq_compressed.as<float>();
  write.rows = rows;
  write.columns = key_columns;
  write.rotary_dim = model_.config.qk_rope_head_dim;
  write.paged = kv.index;
  write.sequences = sequences;
  write.target_rows = targets;
  CEDAR_CHECK_OK(kernels::kv_write(ctx_, write));

  write.format = kernels::RowFormat::q4n;
  write.x = latent;
  write.x_stride = model_.config.head_dim;
  write.norm_weight = nullptr;
  write.columns = model_.config.head_dim;
  write.paged = kv.main;
  return kernels::kv_write(ctx_, write);
}

Status Forward::ffn(LayerId id, const StepBatch& batch, const Bf16* u, Bf16* y) {
  SublayerInput in;
  in.u = u;
  SublayerEnd end;
  end.y = y;
  return route_layer(id, batch, in, end);
}

Status Forward::route_layer(LayerId id, const StepBatch& batch, const SublayerInput& in,
                            SublayerEnd& end) {
  CEDAR_TRY(const RoutedExperts routed,
            feed_forward(ctx_, model_.config, weights(id), model_.config.num_experts_per_tok,
                         batch.image_mask, in, batch.rows, end));
  if (observer_ == nullptr) return {};
  const int64_t top = model_.config.num_experts_per_tok;
  CEDAR_TRY(const auto experts, HostValues<int32_t>::read(ctx_, routed.experts, batch.rows * top));
  CEDAR_TRY(const auto expert_weights,
            HostValues<float>::read(ctx_, routed.weights, batch.rows * top));
  observer_->on_experts(id, experts.data(), expert_weights.data(), batch.rows, top);
  return {};
}

Status Forward::project_boundary(const StepBatch& batch, const StreamState& state) {
  ArenaScope scope(*ctx_.arena);
  const LayerId boundary = model_.plan.boundary;
  Bf16* u = ctx_.arena->allocate<Bf16>(batch.rows * model_.config.hidden_size);
  kernels::HcCollapseParams collapse;
  collapse.x = state.x;
  collapse.pre = state.pre;
  collapse.norm_weight = weights(boundary).attn_norm.as<Bf16>();
  collapse.norm_eps = model_.config.rms_norm_eps;
  collapse.u = u;
  collapse.rows = batch.rows;
  collapse.copies = model_.config.hc_mult;
  collapse.d = model_.config.hidden_size;
  CEDAR_CHECK_OK(kernels::hc_collapse(ctx_, collapse));
  return write_global(plan(boundary), batch, source_rows(model_.plan.source_index(boundary), batch),
                      u);
}

Status Forward::engram(LayerId id, const StepBatch& batch, Bf16* x) {
  ArenaScope scope(*ctx_.arena);
  CEDAR_TRY(const std::vector<uint8_t> packed, engram_rows(id, batch));
  return add_engram(id, batch, upload(ctx_, packed), x);
}

int64_t Forward::engram_bytes(int64_t rows) const {
  const int64_t dim = model_.config.engram_head_dim;
  return rows * model_.engram.columns * (dim + dim / 32);
}

Result<std::vector<uint8_t>> Forward::engram_rows(LayerId id, const StepBatch& batch) {
  const std::vector<int64_t> row_ids = engram_row_ids(model_, id, batch.sequences);
  std::vector<uint8_t> packed(static_cast<size_t>(engram_bytes(batch.rows)));
  CEDAR_CHECK_OK(engram_.fetch(id, row_ids, packed.data()));
  return packed;
}

Status Forward::add_engram(LayerId id, const StepBatch& batch, const uint8_t* packed, Bf16* x) {
  ArenaScope scope(*ctx_.arena);
  const model::ModelConfig& config = model_.config;
  const EngramWeights& w = *weights(id).engram;
  const int64_t columns = model_.engram.columns;
  const int64_t dim = config.engram_head_dim;
  kernels::EngramWidenParams widen;
  widen.rows_packed = packed;
  widen.out = ctx_.arena->allocate<Bf16>(batch.rows * columns * dim);
  widen.rows = batch.rows;
  widen.columns = columns;
  widen.dim = dim;
  CEDAR_CHECK_OK(kernels::engram_widen(ctx_, widen));

  kernels::LinearParams project;
  project.weight = &w.wkv;
  CEDAR_TRY(project.xq, kernels::quantize_q8(ctx_, widen.out, batch.rows, columns * dim));
  project.y_stride = w.wkv.out;
  Bf16* kv = ctx_.arena->allocate<Bf16>(batch.rows * w.wkv.out);
  project.y = kv;
  project.rows = batch.rows;
  CEDAR_CHECK_OK(kernels::linear(ctx_, project));

  kernels::EngramGateParams gate;
  gate.x = x;
  gate.kv = kv;
  gate.q_weight = w.q_weight.as<Bf16>();
  gate.k_weight = w.k_weight.as<Bf16>();
  gate.image_mask = batch.image_mask;
  gate.eps = config.rms_norm_eps;
  gate.rows = batch.rows;
  gate.copies = config.hc_mult;
  gate.d = config.hidden_size;
  return kernels::engram_gate(ctx_, gate);
}

Result<float*> Forward::logits(const StreamState& state, const int32_t* rows, int64_t count) {
  const int64_t copies = model_.config.hc_mult;
  const int64_t d = model_.config.hidden_size;
  float* out = ctx_.arena->allocate<float>(count * model_.config.vocab_size);
  ArenaScope scope(*ctx_.arena);
  Bf16* x = ctx_.arena->allocate<Bf16>(count * copies * d);
  float* pre = ctx_.arena->allocate<float>(count * copies);
  kernels::GatherRowsParams gather;
  gather.index = rows;
  gather.rows = count;
  gather.src = state.x;
  gather.dst = x;
  gather.row_bytes = copies * d * int64_t{2};
  CEDAR_CHECK_OK(kernels::gather_rows(ctx_, gather));
  gather.src = state.pre;
  gather.dst = pre;
  gather.row_bytes = copies * int64_t{4};
  CEDAR_CHECK_OK(kernels::gather_rows(ctx_, gather));

  Bf16* z = ctx_.arena->allocate<Bf16>(count * d);
  kernels::HcCollapseParams collapse;
  collapse.x = x;
  collapse.pre = pre;
  collapse.norm_weight = model_.final_norm.as<Bf16>();
  collapse.norm_eps = model_.config.rms_norm_eps;
  collapse.u = z;
  collapse.rows = count;
  collapse.copies = copies;
  collapse.d = d;
  CEDAR_CHECK_OK(kernels::hc_collapse(ctx_, collapse));
  CEDAR_CHECK_OK(linear_bf16_in(ctx_, *model_.head, z, out, DType::f32, count));
  return out;
}

}  // namespace cedar::engine
