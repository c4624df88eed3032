#pragma once
// The device state of an engine's live sequences: KV pages, window rings, open compressor groups.

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "engine/kv_block_pool.h"
#include "engine/loaded_model.h"
#include "kernels/paged_rows.h"

namespace cedar::engine {

/// One thread at a time. A slot is a row of the rings and of the pending buffers.
class SequenceStore {
 public:
  /// Rings for layers [first, last) and for `extra_rings` more (the drafter's stages). `memory` as KvBlockPool has it.
  static Result<SequenceStore> create(const LoadedModel& model, LayerId first, LayerId last,
                                      int64_t extra_rings, int64_t blocks, int32_t slots,
                                      HostMemorySource* memory = nullptr);

  /// Errors: overloaded (no slot, no pages).
  Result<SequenceSlot> acquire(int64_t blocks);
  void release(SequenceSlot slot);
  std::span<const BlockId> pages(SequenceSlot slot) const {
    return pages_[static_cast<size_t>(slot.value)];
  }

  /// Rows of a KV source in the pool; page_table and max_pages are left for the step to fill.
  kernels::PagedRows main_rows(int64_t source);
  kernels::PagedRows index_rows(int64_t source);
  kernels::WindowRings rings(LayerId layer);
  kernels::WindowRings extra_rings(int64_t index);

  /// Open groups of a ratio > 1 source: [slots, ratio - 1, head_dim], fp32.
  float* pending_kv(int64_t source) { return pending_[static_cast<size_t>(source)].kv.as<float>(); }
  float* pending_gate(int64_t source) {
    return pending_[static_cast<size_t>(source)].gate.as<float>();
  }

  KvBlockPool& pool() { return pool_; }
  const KvBlockPool& pool() const { return pool_; }
  int32_t free_slots() const { return static_cast<int32_t>(free_slots_.size()); }
  int32_t slots() const { return static_cast<int32_t>(pages_.size()); }
  int64_t blocks_for(int64_t tokens) const;

 private:
  explicit SequenceStore(KvBlockPool pool) : pool_(std::move(pool)) {}
  kernels::WindowRings ring_view(Buffer& buffer);

  struct Pending {
    Buffer kv, gate;
  };
  model::KvLayout layout_;
  int64_t window_ = 0;
  KvBlockPool pool_;
  LayerId first_layer_ = 0;
  std::vector<Buffer> rings_;  // per layer: [slots, window, window_row_bytes]
  std::vector<Buffer> extra_rings_;
  std::vector<Pending> pending_;             // per KV source
  std::vector<std::vector<BlockId>> pages_;  // per slot
  std::vector<SequenceSlot> free_slots_;
};

}  // namespace cedar::engine
