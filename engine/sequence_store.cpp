#include "engine/sequence_store.h"

#include <string>

#include "core/units.h"

namespace cedar::engine {

Result<SequenceStore> SequenceStore::create(const LoadedModel& model, LayerId first, LayerId last,
                                            int64_t extra_rings, int64_t blocks, int32_t slots,
                                            HostMemorySource* memory) {
  CEDAR_TRY(KvBlockPool pool,
            KvBlockPool::create(model.device, blocks, model.layout.block_bytes, memory));
  SequenceStore store(std::move(pool));
  store.layout_ = model.layout;
  store.window_ = model.config.sliding_window;
  store.first_layer_ = first;
  const int64_t ring_bytes = slots * store.window_ * model.layout.window_row_bytes;
  for (LayerId layer = first; layer < last; ++layer) {
    CEDAR_TRY(Buffer ring, Buffer::zeroed(model.device, ring_bytes));
    store.rings_.push_back(std::move(ring));
  }
  for (int64_t i = 0; i < extra_rings; ++i) {
    CEDAR_TRY(Buffer ring, Buffer::zeroed(model.device, ring_bytes));
    store.extra_rings_.push_back(std::move(ring));
  }
  for (const model::KvSource& source : model.plan.kv_sources) {
    const int64_t bytes = slots * (source.ratio - 1) * model.config.head_dim * int64_t{4};
    Pending pending;
    CEDAR_TRY(pending.kv, Buffer::zeroed(model.device, bytes));
    CEDAR_TRY(pending.gate, Buffer::zeroed(model.device, bytes));
    store.pending_.push_back(std::move(pending));
  }
  store.pages_.resize(static_cast<size_t>(slots));
  for (int32_t i = slots - 1; i >= 0; --i) store.free_slots_.emplace_back(i);
  return store;
}

int64_t SequenceStore::blocks_for(int64_t tokens) const {
  return ceil_div(tokens, layout_.block_tokens);
}

Result<SequenceSlot> SequenceStore::acquire(int64_t blocks) {
  if (free_slots_.empty()) {
    return make_error(Errc::overloaded,
                      "all " + std::to_string(slots()) + " sequence slots are in use");
  }
  CEDAR_TRY(std::vector<BlockId> pages, pool_.allocate(blocks));
  const SequenceSlot slot = free_slots_.back();
  free_slots_.pop_back();
  pages_[static_cast<size_t>(slot.value)] = std::move(pages);
  return slot;
}

void SequenceStore::release(SequenceSlot slot) {
  std::vector<BlockId>& pages = pages_[static_cast<size_t>(slot.value)];
  for (BlockId block : pages) pool_.release(block);
  pages.clear();
  free_slots_.push_back(slot);
}

kernels::PagedRows SequenceStore::main_rows(int64_t source) {
  const model::KvSourceLayout& layout = layout_.sources[static_cast<size_t>(source)];
  kernels::PagedRows rows;
  rows.base = pool_.base();
  rows.page_bytes = layout_.block_bytes;
  rows.offset_bytes = layout.main_offset;
  rows.row_bytes = layout_.main_row_bytes;
  rows.rows_per_page = layout.rows_per_block;
  return rows;
}

kernels::PagedRows SequenceStore::index_rows(int64_t source) {
  kernels::PagedRows rows = main_rows(source);
  rows.offset_bytes = layout_.sources[static_cast<size_t>(source)].index_offset;
  rows.row_bytes = layout_.index_row_bytes;
  return rows;
}

kernels::WindowRings SequenceStore::ring_view(Buffer& buffer) {
  kernels::WindowRings rings;
  rings.base = buffer.as<uint8_t>();
  rings.slot_stride_bytes = window_ * layout_.window_row_bytes;
  rings.row_bytes = layout_.window_row_bytes;
  rings.window = window_;
  return rings;
}

kernels::WindowRings SequenceStore::rings(LayerId layer) {
  return ring_view(rings_[static_cast<size_t>(layer - first_layer_)]);
}

kernels::WindowRings SequenceStore::extra_rings(int64_t index) {
  return ring_view(extra_rings_[static_cast<size_t>(index)]);
}

}  // namespace cedar::engine
