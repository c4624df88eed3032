#pragma once
// Which of a sequence's blocks are with which indexer: the bookkeeping of index_spread.h, without calls and threads.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/index_service.h"
#include "transport/calls.h"

namespace cedar::actors {

/// One life of an indexer.
using HolderId = std::pair<uint32_t, uint64_t>;
inline HolderId holder_id(const transport::CallTarget& target) {
  return {target.identity.node.value, target.identity.generation};
}

/// Blocks of one sequence at one indexer, in the order in which they went there.
struct IndexPart {
  uint64_t number = 0;  // names it in calls
  HolderId holder;
  std::vector<int32_t> blocks;  // ascending; the first `held` have arrived
  int64_t held = 0;
  bool sending = false;  // the others are on their way
  bool lost = false;     // of no use any more, without blocks

  std::span<const int32_t> held_blocks() const {
    return std::span<const int32_t>(blocks).first(static_cast<size_t>(held));
  }
};

class SpreadSequence {
 public:
  explicit SpreadSequence(const engine::IndexBlockLayout& layout) : layout_(layout) {}

  /// Gives blocks below `finished` that nobody has to `holders`, at most `most` to each that is not being sent to, and says which.
  /// Numbers of new parts come from `next_part`.
  std::vector<int32_t> assign(int64_t finished, std::span<const HolderId> holders, int64_t most,
                              uint64_t& next_part);
  /// Null: nobody has the block, nor will have.
  IndexPart* part_of(int32_t block) {
    const int32_t owner = owner_[static_cast<size_t>(block)];
    return owner == kNobody ? nullptr : &parts_[static_cast<size_t>(owner)];
  }
  /// Null: no such part.
  IndexPart* find(uint64_t number);
  std::vector<IndexPart>& parts() { return parts_; }
  const std::vector<IndexPart>& parts() const { return parts_; }

  /// What was on its way has arrived, or has not and can be assigned anew.
  void sent(IndexPart& part, bool arrived);
  /// Nobody has its blocks any more.
  void lose(IndexPart& part);

  const engine::IndexBlockLayout& layout() const { return layout_; }

 private:
  static constexpr int32_t kNobody = -1;

  void release(std::span<const int32_t> blocks);
  int32_t open_part(HolderId holder, int32_t block, uint64_t& next_part);

  engine::IndexBlockLayout layout_;
  std::vector<IndexPart> parts_;
  std::vector<int32_t> owner_;  // per block: index into parts_
  int64_t first_free_ = 0;      // no block below is nobody's
};

}  // namespace cedar::actors
