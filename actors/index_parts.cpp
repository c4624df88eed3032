#include "actors/index_parts.h"

#include <algorithm>

namespace cedar::actors {
namespace {

// Parts are made anew when an indexer fails. A sequence that has seen so many keeps the rest to itself.
constexpr size_t kMostParts = 256;

}  // namespace

std::vector<int32_t> SpreadSequence::assign(int64_t finished, std::span<const HolderId> holders,
                                            int64_t most, uint64_t& next_part) {
  std::vector<int32_t> out;
  if (holders.empty()) return out;
  if (static_cast<int64_t>(owner_.size()) < finished) {
    owner_.resize(static_cast<size_t>(finished), kNobody);
  }
  std::vector<int64_t> room(holders.size(), most);
  for (size_t h = 0; h < holders.size(); ++h) {
    const bool busy = std::any_of(parts_.begin(), parts_.end(), [&](const IndexPart& part) {
      return part.sending && part.holder == holders[h];
    });
    if (busy) room[h] = 0;
  }
  for (int64_t b = first_free_; b < finished; ++b) {
    int32_t& owner = owner_[static_cast<size_t>(b)];
    if (owner == kNobody) {
      const size_t h = static_cast<size_t>(b) % holders.size();
      const auto block = static_cast<int32_t>(b);
      if (room[h] == 0 || (owner = open_part(holders[h], block, next_part)) == kNobody) continue;
      parts_[static_cast<size_t>(owner)].blocks.push_back(block);
      --room[h];
      out.push_back(block);
    }
    if (b == first_free_) ++first_free_;
  }
  for (const int32_t block : out) part_of(block)->sending = true;
  return out;
}

/// The part at `holder` that `block` can be added to: blocks of a part ascend.
int32_t SpreadSequence::open_part(HolderId holder, int32_t block, uint64_t& next_part) {
  for (size_t i = parts_.size(); i-- > 0;) {
    const IndexPart& part = parts_[i];
    if (part.lost || part.holder != holder) continue;
    if (part.blocks.empty() || part.blocks.back() < block) return static_cast<int32_t>(i);
  }
  if (parts_.size() >= kMostParts) return kNobody;
  IndexPart& part = parts_.emplace_back();
  part.number = next_part++;
  part.holder = holder;
  return static_cast<int32_t>(parts_.size()) - 1;
}

IndexPart* SpreadSequence::find(uint64_t number) {
  const auto found = std::find_if(parts_.begin(), parts_.end(),
                                  [&](const IndexPart& part) { return part.number == number; });
  return found == parts_.end() ? nullptr : &*found;
}

void SpreadSequence::sent(IndexPart& part, bool arrived) {
  part.sending = false;
  if (part.lost) return;
  if (arrived) {
    part.held = static_cast<int64_t>(part.blocks.size());
    return;
  }
  const auto held = static_cast<size_t>(part.held);
  release(std::span<const int32_t>(part.blocks).subspan(held));
  part.blocks.resize(held);
}

void SpreadSequence::lose(IndexPart& part) {
  part.lost = true;
  release(part.blocks);
  part.blocks.clear();
  part.held = 0;
}

void SpreadSequence::release(std::span<const int32_t> blocks) {
  for (const int32_t block : blocks) {
    owner_[static_cast<size_t>(block)] = kNobody;
    first_free_ = std::min(first_free_, int64_t{block});
  }
}

}  // namespace cedar::actors
