#pragma once
// How a pull is cut into parts: one part is one request and one bulk message, so scattered ranges are joined and long ones cut.

#include <span>
#include <vector>

#include "transport/link.h"
#include "transport/types.h"

namespace cedar::transport {

/// Neighbouring bytes on both sides.
struct Piece {
  uint64_t offset = 0;  // in the source region
  std::byte* target = nullptr;
  uint64_t bytes = 0;
};
struct Part {
  std::vector<Piece> pieces;
  uint64_t bytes = 0;
};

/// Every byte of `pieces` once, in order; a part has at most `part_bytes` bytes and `part_pieces` pieces, and no part can
/// take over the first piece of the next. Ranges that touch on both sides become one piece.
std::vector<Part> plan_parts(std::span<const Piece> pieces, uint64_t part_bytes,
                             uint32_t part_pieces);

}  // namespace cedar::transport
