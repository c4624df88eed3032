#pragma once
// The Engram tables of a mapped checkpoint, or one shard of them: rows [rows * i / n, rows * (i + 1) / n) of every layer.
// For a process that does nothing but serve rows, and for engines that have the tables beside them.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/result.h"
#include "model/checkpoint.h"

namespace cedar::engine {

struct EngramShard {
  int32_t index = 0;
  int32_t count = 1;
};

struct EngramRowRange {
  int64_t begin = 0, end = 0;
  bool contains(int64_t row) const { return row >= begin && row < end; }
};

/// The rows of a table of `rows` rows that a shard holds. REQUIRES: 0 <= index < count.
EngramRowRange engram_row_range(int64_t rows, EngramShard shard);
/// Whose range has the row. REQUIRES: 0 <= row < rows.
int32_t engram_shard_of(int64_t rows, int64_t row, int32_t count);

/// Threads: any; nothing changes after make_resident().
class EngramTables {
 public:
  /// Views into `checkpoint`, whose role must be one that has the tables. Errors: invalid_argument (shard).
  static Result<std::shared_ptr<EngramTables>> create(
      std::shared_ptr<const model::Checkpoint> checkpoint, EngramShard shard);

  /// Codes and scales of one row.
  int64_t row_bytes() const { return row_bytes_; }
  /// Of the shard, over all layers.
  int64_t bytes() const;
  EngramShard shard() const { return shard_; }

  /// Copies rows into `packed`, [row_ids.size(), row_bytes()]. May wait for the disk. Errors: unavailable (the layer has no
  /// table here), invalid_argument naming the row (outside of the table or the shard).
  Status copy(LayerId layer, std::span<const int64_t> row_ids, uint8_t* packed) const;

  /// Called with (bytes done, bytes in all); false stops.
  using Progress = std::function<bool(int64_t done, int64_t total)>;
  /// Reads every page of the shard, so that copy() finds them in memory. Errors: out_of_memory naming need and what is
  /// available; cancelled.
  Status make_resident(const Progress& progress = {}) const;
  /// The same against a figure of the caller's instead of what the system says is available.
  Status make_resident(int64_t available_bytes, const Progress& progress) const;

 private:
  struct Table {
    LayerId layer = 0;
    int64_t rows = 0, dim = 0, groups = 0;
    EngramRowRange range;
    const uint8_t* codes = nullptr;
    const uint8_t* scales = nullptr;
  };

  std::shared_ptr<const model::Checkpoint> checkpoint_;
  EngramShard shard_;
  std::vector<Table> tables_;
  int64_t row_bytes_ = 0;
};

}  // namespace cedar::engine
