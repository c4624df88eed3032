#pragma once
// KV blocks that answers complete, for a cache to fetch: copied into a few slots, because the sequence may end and free its
// pages at once. A block that finds no slot is not kept.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "actors/data_plane.h"
#include "actors/export_memory.h"
#include "actors/messages.h"

namespace cedar::actors {

/// One thread, the stage's, except for `ended`.
class AnswerBlocks {
 public:
  /// `ended` comes on the transport's thread when nobody reads a slot any more, and has to bring about free().
  AnswerBlocks(const DataPlane& plane, int64_t block_bytes, std::function<void(size_t slot)> ended);

  /// Errors: overloaded (no slot), those of the transport.
  Result<Offer> offer(std::span<const std::byte> block);
  void free(size_t slot) { free_.push_back(slot); }

 private:
  Status prepare();

  DataPlane plane_;
  int64_t block_bytes_;
  std::function<void(size_t)> ended_;
  std::shared_ptr<ExportRegion> region_;  // made when first needed
  std::vector<size_t> free_;
};

}  // namespace cedar::actors
