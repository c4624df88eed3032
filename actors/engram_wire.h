#pragma once
// What a stage asks an Engram service: rows of one layer's table, all of one shard. Little-endian:
//
//   request   layer u32, count u32, then per row u64
//   reply     the rows in that order, each of the table's row bytes: codes, then scales

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/result.h"

namespace cedar::actors {

/// Keeps a reply of release rows (264 bytes) at 2 MiB: long enough to cost little per row, short enough to share a link.
inline constexpr size_t kMaxEngramRows = 8192;

struct EngramQuery {
  LayerId layer = 0;
  std::vector<int64_t> rows;
};

std::vector<std::byte> encode_engram_query(LayerId layer, std::span<const int64_t> rows);
/// Errors: invalid_argument (not a query, or of more than kMaxEngramRows).
Result<EngramQuery> decode_engram_query(std::span<const std::byte> bytes);

}  // namespace cedar::actors
