#pragma once
// Places for states as bytes, in memory that other processes may read. One thread.

#include <span>
#include <vector>

#include "actors/export_memory.h"
#include "core/buffer.h"
#include "engine/handoff.h"

namespace cedar::actors {

class StateSlots {
 public:
  /// `count` slots of `bytes`. Errors: those of the memory.
  Status allocate(ExportMemory& memory, int64_t bytes, size_t count);

  bool allocated() const { return slot_bytes_ > 0; }
  bool has_free() const { return !free_.empty(); }
  struct Kept {
    size_t slot = 0;
    std::span<const std::byte> bytes;  // until give_back()
  };
  /// Errors: internal, naming the sizes, when the state is larger than a slot. REQUIRES: has_free().
  Result<Kept> keep(const engine::Handoff& state);
  void give_back(size_t slot) { free_.push_back(slot); }
  /// Who still reads keeps the memory.
  void clear();

 private:
  Buffer memory_;
  int64_t slot_bytes_ = 0;
  std::vector<size_t> free_;
};

}  // namespace cedar::actors
