#pragma once
// Engram sources that look at, or replace, the row ids which the forward pass asks for.

#include <map>
#include <utility>
#include <vector>

#include "engine/engram_source.h"

namespace cedar::engine::verify {

/// Remembers the row ids of the last request for each layer.
class RecordedRows final : public EngramSource {
 public:
  explicit RecordedRows(EngramSource& inner) : inner_(inner) {}
  Status fetch(LayerId layer, std::span<const int64_t> row_ids, uint8_t* packed) override {
    rows[layer].assign(row_ids.begin(), row_ids.end());
    return inner_.fetch(layer, row_ids, packed);
  }

  std::map<LayerId, std::vector<int64_t>> rows;

 private:
  EngramSource& inner_;
};

/// Answers every request with the same rows.
class GivenRows final : public EngramSource {
 public:
  GivenRows(EngramSource& inner, std::vector<int64_t> rows)
      : inner_(inner), rows_(std::move(rows)) {}
  Status fetch(LayerId layer, std::span<const int64_t> row_ids, uint8_t* packed) override {
    if (row_ids.size() != rows_.size()) {
      return make_error(Errc::invalid_argument, "recorded " + std::to_string(rows_.size()) +
                                                    " Engram rows, asked for " +
                                                    std::to_string(row_ids.size()));
    }
    return inner_.fetch(layer, rows_, packed);
  }

 private:
  EngramSource& inner_;
  std::vector<int64_t> rows_;
};

}  // namespace cedar::engine::verify
