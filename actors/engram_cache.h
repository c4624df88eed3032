#pragma once
// Hot Engram rows of a stage: as many as fit a bound, evicted by second chance. Single-threaded.

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/ids.h"

namespace cedar::actors {

class EngramCache {
 public:
  /// A row costs row_bytes and what its bookkeeping takes, kOverheadBytes. No room for one row: nothing is kept.
  EngramCache(int64_t capacity_bytes, int64_t row_bytes);

  /// The row, until the next insert(), or null. A row that is found gets its second chance.
  const uint8_t* find(LayerId layer, int64_t row);
  /// Keeps a copy; a row that is here already stays as it is.
  void insert(LayerId layer, int64_t row, const uint8_t* bytes);

  int64_t rows() const { return static_cast<int64_t>(slots_.size()); }
  int64_t capacity_rows() const { return capacity_rows_; }

  static constexpr int64_t kOverheadBytes = 64;

 private:
  struct Key {
    LayerId layer = 0;
    int64_t row = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      return static_cast<size_t>((static_cast<uint64_t>(key.row) * 0x9E3779B97F4A7C15ull) ^
                                 (static_cast<uint64_t>(key.layer) << 32));
    }
  };
  struct Slot {
    Key key;
    bool used = false;  // since the hand passed
  };
  /// Rows lie in slabs, which are allocated as the cache fills.
  static constexpr int64_t kSlabRows = 1024;

  uint8_t* data(int64_t slot);
  int64_t take_slot();

  int64_t row_bytes_;
  int64_t capacity_rows_;
  std::unordered_map<Key, int64_t, Hash> index_;
  std::vector<Slot> slots_;
  std::vector<std::vector<uint8_t>> slabs_;
  int64_t hand_ = 0;
};

}  // namespace cedar::actors
