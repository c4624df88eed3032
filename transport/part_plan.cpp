#include "transport/part_plan.h"

#include <algorithm>

namespace cedar::transport {

std::vector<Part> plan_parts(std::span<const Piece> pieces, uint64_t part_bytes,
                             uint32_t part_pieces) {
  std::vector<Part> parts;
  for (Piece rest : pieces) {
    while (rest.bytes > 0) {
      if (parts.empty() || parts.back().bytes == part_bytes) parts.emplace_back();
      Part* part = &parts.back();
      Piece* last = part->pieces.empty() ? nullptr : &part->pieces.back();
      const bool touches = last != nullptr && last->offset + last->bytes == rest.offset &&
                           last->target + last->bytes == rest.target;
      if (!touches && part->pieces.size() >= part_pieces) {
        part = &parts.emplace_back();
        last = nullptr;
      }
      const uint64_t bytes = std::min(rest.bytes, part_bytes - part->bytes);
      if (touches) {
        last->bytes += bytes;
      } else {
        part->pieces.push_back(Piece{rest.offset, rest.target, bytes});
      }
      part->bytes += bytes;
      rest.offset += bytes;
      rest.target += bytes;
      rest.bytes -= bytes;
    }
  }
  return parts;
}

}  // namespace cedar::transport
