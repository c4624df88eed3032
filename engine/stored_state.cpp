#include "engine/stored_state.h"

#include <algorithm>

#include "core/device_memory.h"
#include "engine/ring_runs.h"

namespace cedar::engine {
namespace {

/// Calls move(address in the store, offset in the state's windows, bytes) for every run of neighbours.
template <class Move>
Status for_each_window_run(const StoredLayers& layers, SequenceSlot slot, const Handoff& state,
                           const Move& move) {
  const Position begin = state.length - state.window_rows;
  const int64_t layer_bytes = state.window_rows * layers.model.layout.window_row_bytes;
  const LayerId last = std::min(layers.range.last, layers.model.plan.boundary);
  for (LayerId layer = layers.range.first; layer < last; ++layer) {
    CEDAR_CHECK_OK(for_each_ring_run(layers.store.rings(layer), slot.value, begin, state.length,
                                     [&](uint8_t* ring, int64_t offset, int64_t bytes) {
                                       return move(ring, layer * layer_bytes + offset, bytes);
                                     }));
  }
  return {};
}

/// Calls move(address in the store, offset in the state's open groups, bytes) for kv and gate of every source.
template <class Move>
Status for_each_pending(const StoredLayers& layers, SequenceSlot slot, const Move& move) {
  int64_t at = 0;
  for (size_t i = 0; i < layers.model.plan.kv_sources.size(); ++i) {
    const model::KvSource& source = layers.model.plan.kv_sources[i];
    const int64_t count = (source.ratio - 1) * layers.model.config.head_dim;
    const int64_t bytes = count * int64_t{4};
    if (count > 0 && layers.range.contains(source.layer)) {
      const auto index = static_cast<int64_t>(i);
      const int64_t offset = slot.value * count;
      CEDAR_CHECK_OK(move(layers.store.pending_kv(index) + offset, at, bytes));
      CEDAR_CHECK_OK(move(layers.store.pending_gate(index) + offset, at + bytes, bytes));
    }
    at += 2 * bytes;
  }
  return {};
}

}  // namespace

Result<Handoff> allocate_state(const LoadedModel& model, Position length) {
  Handoff state;
  state.length = length;
  state.window_rows = std::min<int64_t>(model.config.sliding_window, length);
  CEDAR_TRY(state.windows, Buffer::allocate(Device{}, model.plan.boundary * state.window_rows *
                                                          model.layout.window_row_bytes));
  if (const int64_t bytes = pending_bytes(model, length); bytes > 0) {
    CEDAR_TRY(state.pending, Buffer::allocate(Device{}, bytes));
  }
  return state;
}

Status fetch_state(const StoredLayers& layers, SequenceSlot slot, Handoff& state) {
  const auto fetch_to = [&](Buffer& part) {
    return [&layers, &part](const void* from, int64_t offset, int64_t bytes) {
      return copy_to_host(layers.ctx.device, part.data() + offset, from, bytes,
                          layers.ctx.cuda_stream);
    };
  };
  CEDAR_CHECK_OK(for_each_window_run(layers, slot, state, fetch_to(state.windows)));
  if (state.pending.bytes() == 0) return {};
  return for_each_pending(layers, slot, fetch_to(state.pending));
}

Status place_state(const StoredLayers& layers, SequenceSlot slot, const Handoff& state) {
  const auto place_from = [&](const Buffer& part) {
    return [&layers, &part](void* to, int64_t offset, int64_t bytes) {
      return copy_to_device(layers.ctx.device, to, part.data() + offset, bytes,
                            layers.ctx.cuda_stream);
    };
  };
  CEDAR_CHECK_OK(for_each_window_run(layers, slot, state, place_from(state.windows)));
  if (state.pending.bytes() == 0) return {};
  return for_each_pending(layers, slot, place_from(state.pending));
}

}  // namespace cedar::engine
