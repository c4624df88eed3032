#include "engine/layer_cut.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "core/units.h"
#include "engine/upload.h"

namespace cedar::engine {
namespace {

int64_t row_bytes(const model::ModelConfig& config) {
  return config.hc_mult * (config.hidden_size * int64_t{2} + int64_t{4});
}

/// Rows of a source that a sequence's rows complete.
int64_t completed(const BatchSequence& sequence, int64_t ratio) {
  if (!sequence.writes_global) return 0;
  return sequence.end() / ratio - sequence.start / ratio;
}

}  // namespace

LayerCut::LayerCut(const LoadedModel& model, LayerId cut, LayerId end) : model_(model), cut_(cut) {
  std::set<LayerId> lists, pools;
  for (LayerId id = cut; id < end; ++id) {
    const model::LayerPlan& plan = model.plan.layers[static_cast<size_t>(id)];
    if (plan.index_source && *plan.index_source < cut) lists.insert(*plan.index_source);
    if (plan.uses_candidates && *model.config.candidate_source_layer_id < cut) {
      pools.insert(*model.config.candidate_source_layer_id);
    }
  }
  lists_.assign(lists.begin(), lists.end());
  pools_.assign(pools.begin(), pools.end());
  for (size_t i = 0; i < model.plan.kv_sources.size(); ++i) {
    const model::KvSource& source = model.plan.kv_sources[i];
    if (source.layer >= cut) continue;
    sources_.push_back(i);
    pending_bytes_ += 2 * (source.ratio - 1) * model.config.head_dim * int64_t{4};
  }
}

int64_t LayerCut::list_length(const StepBatch& batch, LayerId owner) const {
  const model::LayerPlan& plan = model_.plan.layers[static_cast<size_t>(owner)];
  return std::min(model_.config.index_topk, batch.ratio(plan.ratio).max_visible);
}

int64_t LayerCut::pool_stride(const StepBatch& batch, LayerId owner) const {
  const model::LayerPlan& plan = model_.plan.layers[static_cast<size_t>(owner)];
  return ceil_div(batch.ratio(plan.ratio).max_visible, 32);
}

int64_t LayerCut::window_bytes(const CutState& state) const {
  if (state.windows == nullptr) return 0;
  return state.windows->bytes() / model_.plan.boundary * cut_;
}

int64_t LayerCut::pending_bytes(const CutState& state) const {
  if (state.pending == nullptr || state.pending->bytes() == 0) return 0;
  return pending_bytes_;
}

int64_t LayerCut::bytes(const StepBatch& batch, std::span<const CutState> states) const {
  int64_t bytes = batch.rows * row_bytes(model_.config);
  for (const LayerId owner : lists_) bytes += batch.rows * list_length(batch, owner) * 4;
  for (const LayerId owner : pools_) bytes += batch.rows * pool_stride(batch, owner) * 4;
  const int64_t global = model_.layout.main_row_bytes + model_.layout.index_row_bytes;
  for (const size_t source : sources_) {
    for (const BatchSequence& sequence : batch.sequences) {
      bytes += completed(sequence, model_.plan.kv_sources[source].ratio) * global;
    }
  }
  for (const CutState& state : states) bytes += window_bytes(state) + pending_bytes(state);
  return bytes;
}

int64_t LayerCut::max_bytes(const EngineOptions& options, int64_t rows, int64_t sequences,
                            bool states) const {
  int64_t bytes = rows * row_bytes(model_.config);
  bytes += static_cast<int64_t>(lists_.size()) * rows * model_.config.index_topk * 4;
  for (const LayerId owner : pools_) {
    const int64_t ratio = model_.plan.layers[static_cast<size_t>(owner)].ratio;
    bytes += rows * ceil_div(options.max_context_tokens / ratio, 32) * 4;
  }
  const int64_t global = model_.layout.main_row_bytes + model_.layout.index_row_bytes;
  for (const size_t source : sources_) {
    bytes += (rows / model_.plan.kv_sources[source].ratio + sequences) * global;
  }
  if (!states) return bytes;
  const int64_t windows = cut_ * model_.config.sliding_window * model_.layout.window_row_bytes;
  return bytes + sequences * (windows + pending_bytes_);
}

/// Calls move(address on the device, bytes) for every run of neighbours among the rows of earlier sources.
template <class Move>
Status LayerCut::move_global(SequenceStore& store, const StepBatch& batch, const Move& move) const {
  for (const size_t source : sources_) {
    const int64_t ratio = model_.plan.kv_sources[source].ratio;
    const auto index = static_cast<int64_t>(source);
    for (const BatchSequence& sequence : batch.sequences) {
      const int64_t begin = sequence.start / ratio;
      const int64_t end = begin + completed(sequence, ratio);
      const auto pages = store.pages(sequence.slot);
      for (const kernels::PagedRows& rows : {store.main_rows(index), store.index_rows(index)}) {
        for (int64_t j = begin; j < end;) {
          const int64_t in_page = j % rows.rows_per_page;
          const int64_t count = std::min(end - j, rows.rows_per_page - in_page);
          const BlockId page = pages[static_cast<size_t>(j / rows.rows_per_page)];
          uint8_t* at = rows.base + page.value * rows.page_bytes + rows.offset_bytes +
                        in_page * rows.row_bytes;
          CEDAR_CHECK_OK(move(at, count * rows.row_bytes));
          j += count;
        }
      }
    }
  }
  return {};
}

Status LayerCut::write(kernels::KernelContext& ctx, SequenceStore& store, const StepBatch& batch,
                       const SharedAttention& shared, const StreamState& state,
                       std::span<const CutState> states, std::span<std::byte> to) const {
  CEDAR_ASSERT(static_cast<int64_t>(to.size()) == bytes(batch, states), std::to_string(to.size()));
  std::byte* at = to.data();
  const auto put = [&](const void* from, int64_t count) -> Status {
    CEDAR_CHECK_OK(copy_to_host(ctx.device, at, from, count, ctx.cuda_stream));
    at += count;
    return {};
  };
  const int64_t copies = model_.config.hc_mult;
  CEDAR_CHECK_OK(put(state.x, batch.rows * copies * model_.config.hidden_size * int64_t{2}));
  CEDAR_CHECK_OK(put(state.pre, batch.rows * copies * int64_t{4}));
  for (const LayerId owner : lists_) {
    CEDAR_TRY(const SharedTopk list, shared.topk(cut_, owner));
    CEDAR_CHECK_OK(put(list.indices, batch.rows * list.k * 4));
  }
  for (const LayerId owner : pools_) {
    CEDAR_TRY(const SharedCandidates pool, shared.candidates(cut_, owner));
    CEDAR_CHECK_OK(put(pool.mask, batch.rows * pool.stride * 4));
  }
  CEDAR_CHECK_OK(move_global(store, batch, put));
  for (const CutState& sequence : states) {
    for (const auto& [part, count] : {std::pair{sequence.windows, window_bytes(sequence)},
                                      std::pair{sequence.pending, pending_bytes(sequence)}}) {
      if (count == 0) continue;
      std::memcpy(at, part->data(), static_cast<size_t>(count));
      at += count;
    }
  }
  return synchronize(ctx.device, ctx.cuda_stream);
}

Result<StreamState> LayerCut::read(kernels::KernelContext& ctx, SequenceStore& store,
                                   Forward& forward, const StepBatch& batch,
                                   SharedAttention& shared, std::span<const CutState> states,
                                   std::span<const std::byte> from) const {
  const int64_t expected = bytes(batch, states);
  if (static_cast<int64_t>(from.size()) != expected) {
    return make_error(Errc::invalid_argument,
                      "cut at layer " + std::to_string(cut_) + ": " + std::to_string(expected) +
                          " bytes expected of this step, got " + std::to_string(from.size()));
  }
  const std::byte* at = from.data();
  const auto get = [&](void* to, int64_t count) -> Status {
    CEDAR_CHECK_OK(copy_to_device(ctx.device, to, at, count, ctx.cuda_stream));
    at += count;
    return {};
  };
  const int64_t copies = model_.config.hc_mult;
  const int64_t x_values = batch.rows * copies * model_.config.hidden_size;
  StreamState state;
  state.x = ctx.arena->allocate<Bf16>(x_values);
  float* pre = ctx.arena->allocate<float>(batch.rows * copies);
  state.pre = pre;
  CEDAR_CHECK_OK(get(state.x, x_values * int64_t{2}));
  CEDAR_CHECK_OK(get(pre, batch.rows * copies * int64_t{4}));
  for (const LayerId owner : lists_) {
    const int64_t k = list_length(batch, owner);
    auto* indices = ctx.arena->allocate<int32_t>(batch.rows * k);
    CEDAR_CHECK_OK(get(indices, batch.rows * k * 4));
    shared.publish(owner, SharedTopk{indices, k});
  }
  for (const LayerId owner : pools_) {
    const int64_t stride = pool_stride(batch, owner);
    auto* mask = ctx.arena->allocate<uint32_t>(batch.rows * stride);
    CEDAR_CHECK_OK(get(mask, batch.rows * stride * 4));
    shared.publish(owner, SharedCandidates{mask, stride});
  }
  CEDAR_CHECK_OK(move_global(store, batch, get));
  for (const size_t source : sources_) {
    shared.publish(model_.plan.kv_sources[source].layer,
                   forward.source_rows(static_cast<int64_t>(source), batch));
  }
  for (const CutState& sequence : states) {
    for (const auto& [part, count] : {std::pair{sequence.windows, window_bytes(sequence)},
                                      std::pair{sequence.pending, pending_bytes(sequence)}}) {
      if (count == 0) continue;
      std::memcpy(part->data(), at, static_cast<size_t>(count));
      at += count;
    }
  }
  // The caller may drop the bytes as soon as this returns; copies from pinned memory are only queued.
  CEDAR_CHECK_OK(synchronize(ctx.device, ctx.cuda_stream));
  return state;
}

}  // namespace cedar::engine
