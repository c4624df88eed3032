#include "engine/index_selection.h"

#include <algorithm>
#include <cmath>

#include "core/units.h"
#include "engine/sharded_selection.h"
#include "engine/upload.h"
#include "kernels/linear.h"
#include "kernels/topk.h"

namespace cedar::engine {
namespace {

/// Scores of a tile of rows stay below this, so that a long context does not need a score matrix of its own
/// size squared.
constexpr int64_t score_tile_bytes(Device device) {
  // A GPU needs many rows at a time to be busy.
  return int64_t{device.kind == DeviceKind::cpu ? 16 : 256} << 20;
}

float head_weight_scale(const model::ModelConfig& config) {
  return static_cast<float>(
      1.0 / std::sqrt(static_cast<double>(config.index_head_dim * config.index_n_heads)));
}

struct IndexQueries {
  uint8_t* packed = nullptr;     // [rows, heads, packed q4x row]
  Bf16* head_weights = nullptr;  // [rows, heads]
};

Result<IndexQueries> index_queries(kernels::KernelContext& ctx, const model::ModelConfig& config,
                                   const SelectionInput& in) {
  const int64_t rows = in.batch->rows;
  const IndexQueryWeights& weights = *in.weights->index_query;
  const int64_t columns = config.index_n_heads * config.index_head_dim;
  IndexQueries out;
  out.packed = ctx.arena->allocate<uint8_t>(
      rows * config.index_n_heads *
      kernels::packed_row_bytes(kernels::RowFormat::q4x, config.index_head_dim));
  out.head_weights = ctx.arena->allocate<Bf16>(rows * config.index_n_heads);
  ArenaScope scope(*ctx.arena);

  Bf16* q = ctx.arena->allocate<Bf16>(rows * columns);
  kernels::LinearParams query;
  query.weight = &weights.wq_b;
  query.xq = in.qr;
  query.y = q;
  query.y_stride = columns;
  query.rows = rows;
  CEDAR_CHECK_OK(kernels::linear(ctx, query));

  kernels::LinearParams heads;
  heads.weight = &weights.weights_proj;
  heads.x = in.u;
  heads.x_stride = config.hidden_size;
  heads.y = out.head_weights;
  heads.y_stride = config.index_n_heads;
  heads.rows = rows;
  CEDAR_CHECK_OK(kernels::linear(ctx, heads));

  kernels::IndexQueryParams pack;
  pack.q = q;
  pack.positions = in.batch->positions;
  pack.inv_freq = in.inv_freq;
  pack.packed = out.packed;
  pack.rows = rows;
  pack.heads = config.index_n_heads;
  pack.columns = config.index_head_dim;
  pack.rotary_dim = config.qk_rope_head_dim;
  CEDAR_CHECK_OK(kernels::index_query(ctx, pack));
  return out;
}

IndexQuestions questions_of(const model::ModelConfig& config, const NumericOptions& numeric,
                            const SelectionInput& in, const IndexQueries& queries) {
  IndexQuestions out;
  out.source = in.source;
  out.packed = queries.packed;
  out.head_weights = queries.head_weights;
  out.visible = in.batch->ratio(in.plan->ratio).visible;
  out.rows = in.batch->rows;
  out.heads = config.index_n_heads;
  out.columns = config.index_head_dim;
  out.head_weight_scale = head_weight_scale(config);
  out.mode = numeric.index_score;
  out.best = in.storage.k;
  if (in.plan->makes_candidates) {
    out.candidate_block = config.candidate_block_size;
    out.candidate_keep = config.candidate_topk_blocks;
  }
  return out;
}

/// All keys of all rows, a tile of rows at a time.
Status scan_all(kernels::KernelContext& ctx, const model::ModelConfig& config,
                const NumericOptions& numeric, const SelectionInput& in,
                const IndexQueries& queries, const SharedCandidates& filter,
                ForwardObserver* observer) {
  const StepBatch& batch = *in.batch;
  const RatioView& ratio = batch.ratio(in.plan->ratio);
  const int64_t columns = ratio.max_visible;
  const SelectionStorage& out = in.storage;
  const int64_t stride = align_up(columns, 16);
  const int64_t tile =
      std::clamp<int64_t>(score_tile_bytes(ctx.device) / (stride * int64_t{4}), 1, batch.rows);
  float* scores = ctx.arena->allocate<float>(tile * stride);
  const int64_t query_bytes =
      config.index_n_heads *
      kernels::packed_row_bytes(kernels::RowFormat::q4x, config.index_head_dim);
  for (int64_t begin = 0; begin < batch.rows; begin += tile) {
    const int64_t rows = std::min(tile, batch.rows - begin);
    kernels::IndexScoreParams score;
    score.q = queries.packed + begin * query_bytes;
    score.head_weights = queries.head_weights + begin * config.index_n_heads;
    score.head_weight_scale = head_weight_scale(config);
    score.keys = in.keys;
    score.sequences = batch.row_sequence + begin;
    score.rows_per_sequence = batch.rows / static_cast<int64_t>(batch.sequences.size());
    score.visible = ratio.visible + begin;
    if (in.plan->uses_candidates && observer == nullptr) {
      score.mask = filter.mask + begin * filter.stride;
      score.mask_stride = filter.stride;
    }
    score.scores = scores;
    score.score_stride = stride;
    score.rows = rows;
    score.heads = config.index_n_heads;
    score.columns = config.index_head_dim;
    score.mode = numeric.index_score;
    CEDAR_CHECK_OK(kernels::index_score(ctx, score));
    if (observer != nullptr) {
      CEDAR_TRY(const auto values, HostValues<float>::read(ctx, scores, rows * stride));
      observer->on_scores(in.plan->id, values.data(), stride, begin, rows);
    }
    if (out.mask != nullptr) {
      kernels::CandidateBlocksParams blocks;
      blocks.scores = scores;
      blocks.score_stride = stride;
      blocks.visible = ratio.visible + begin;
      blocks.mask = out.mask + begin * out.stride;
      blocks.mask_stride = out.stride;
      blocks.columns = columns;
      blocks.rows = rows;
      blocks.block = config.candidate_block_size;
      blocks.keep = config.candidate_topk_blocks;
      CEDAR_CHECK_OK(kernels::candidate_blocks(ctx, blocks));
    }
    kernels::TopkParams best;
    best.scores = scores;
    best.score_stride = stride;
    best.columns = columns;
    if (in.plan->uses_candidates) {
      best.mask = filter.mask + begin * filter.stride;
      best.mask_stride = filter.stride;
    }
    best.indices = out.indices + begin * out.k;
    best.rows = rows;
    best.k = out.k;
    CEDAR_CHECK_OK(kernels::topk(ctx, best));
  }
  return {};
}

}  // namespace

SelectionStorage reserve_selection(kernels::KernelContext& ctx, const model::ModelConfig& config,
                                   const model::LayerPlan& plan, const StepBatch& batch) {
  SelectionStorage out;
  if (!plan.scores()) return out;
  const int64_t columns = batch.ratio(plan.ratio).max_visible;
  out.k = std::min(config.index_topk, columns);
  out.indices = ctx.arena->allocate<int32_t>(batch.rows * out.k);
  if (plan.makes_candidates) {
    out.stride = ceil_div(columns, 32);
    out.mask = ctx.arena->allocate<uint32_t>(batch.rows * out.stride);
  }
  return out;
}

Status select_rows(kernels::KernelContext& ctx, const model::ModelConfig& config,
                   const NumericOptions& numeric, const SelectionInput& in, SharedAttention& shared,
                   ForwardObserver* observer) {
  const StepBatch& batch = *in.batch;
  const SelectionStorage& out = in.storage;
  if (batch.ratio(in.plan->ratio).max_visible > 0) {
    SharedCandidates filter;
    if (in.plan->uses_candidates) {
      CEDAR_TRY(filter, shared.candidates(in.plan->id, *config.candidate_source_layer_id));
    }
    ArenaScope scope(*ctx.arena);
    CEDAR_TRY(const IndexQueries queries, index_queries(ctx, config, in));
    // An observer wants every score, and a pool of candidates is small: both stay here.
    const bool spread = observer == nullptr && !in.plan->uses_candidates &&
                        !numeric.compat_stale_index_key && any_sharded(in);
    if (spread) {
      CEDAR_CHECK_OK(select_sharded(ctx, in, questions_of(config, numeric, in, queries)));
    } else {
      CEDAR_CHECK_OK(scan_all(ctx, config, numeric, in, queries, filter, observer));
    }
  }
  shared.publish(in.plan->id, SharedTopk{out.indices, out.k});
  if (observer != nullptr) {
    CEDAR_TRY(const auto indices, HostValues<int32_t>::read(ctx, out.indices, batch.rows * out.k));
    observer->on_topk(in.plan->id, indices.data(), out.k, batch.rows);
  }
  if (out.mask != nullptr) {
    shared.publish(in.plan->id, SharedCandidates{out.mask, out.stride});
    if (observer != nullptr) {
      CEDAR_TRY(const auto mask,
                HostValues<uint32_t>::read(ctx, out.mask, batch.rows * out.stride));
      observer->on_candidates(in.plan->id, mask.data(), out.stride, batch.rows);
    }
  }
  return {};
}

}  // namespace cedar::engine
