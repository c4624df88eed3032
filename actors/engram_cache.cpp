#include "actors/engram_cache.h"

#include <algorithm>
#include <cstring>

namespace cedar::actors {

EngramCache::EngramCache(int64_t capacity_bytes, int64_t row_bytes)
    : row_bytes_(row_bytes), capacity_rows_(capacity_bytes / (row_bytes + kOverheadBytes)) {}

uint8_t* EngramCache::data(int64_t slot) {
  return slabs_[static_cast<size_t>(slot / kSlabRows)].data() + slot % kSlabRows * row_bytes_;
}

const uint8_t* EngramCache::find(LayerId layer, int64_t row) {
  const auto known = index_.find({layer, row});
  if (known == index_.end()) return nullptr;
  slots_[static_cast<size_t>(known->second)].used = true;
  return data(known->second);
}

void EngramCache::insert(LayerId layer, int64_t row, const uint8_t* bytes) {
  if (capacity_rows_ == 0 || index_.count({layer, row}) != 0) return;
  const int64_t slot = take_slot();
  slots_[static_cast<size_t>(slot)] = {{layer, row}, false};
  index_.emplace(Key{layer, row}, slot);
  std::memcpy(data(slot), bytes, static_cast<size_t>(row_bytes_));
}

int64_t EngramCache::take_slot() {
  if (rows() < capacity_rows_) {
    if (rows() % kSlabRows == 0) {
      const int64_t rows_here = std::min(kSlabRows, capacity_rows_ - rows());
      slabs_.emplace_back(static_cast<size_t>(rows_here * row_bytes_));
    }
    slots_.emplace_back();
    return rows() - 1;
  }
  while (true) {
    const int64_t slot = hand_;
    hand_ = (hand_ + 1) % capacity_rows_;
    Slot& victim = slots_[static_cast<size_t>(slot)];
    if (!victim.used) {
      index_.erase(victim.key);
      return slot;
    }
    victim.used = false;
  }
}

}  // namespace cedar::actors
