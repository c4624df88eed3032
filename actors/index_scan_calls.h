#pragma once
// One scan over several indexers: which calls it takes, and what becomes of their answers. No locks, no calls.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "actors/index_messages.h"
#include "actors/index_parts.h"
#include "engine/index_service.h"

namespace cedar::actors {

/// Rows of one entry of a scan about the blocks that a part holds.
struct ScanPiece {
  size_t entry = 0;
  HolderId holder;
  uint64_t sequence = 0;
  uint64_t part = 0;
  std::vector<int32_t> blocks;
};

/// One call: some rows of some pieces, all at one holder.
struct ScanCall {
  struct Slice {
    size_t piece = 0;
    int64_t row_begin = 0;  // in the questions
    int64_t rows = 0;
  };
  HolderId holder;
  std::vector<Slice> slices;
  std::vector<int64_t> visible;  // of its rows

  Bytes message(const engine::IndexQuestions& questions, std::span<const ScanPiece> pieces) const;
};

/// One call a holder where neither request nor reply passes `most_bytes`, else several.
std::vector<ScanCall> plan_scan_calls(const engine::IndexQuestions& questions,
                                      std::span<const engine::IndexScanRows> entries,
                                      std::span<const ScanPiece> pieces, int64_t most_bytes);

/// An answer for every piece, from one for every call; a piece of which any row is missing has none. `replies` that cannot be
/// used are replaced by what is wrong with them.
std::vector<engine::IndexScan::Answer> join_replies(const engine::IndexQuestions& questions,
                                                    std::span<ScanPiece> pieces,
                                                    std::span<const ScanCall> calls,
                                                    std::span<Result<Bytes>> replies);

}  // namespace cedar::actors
