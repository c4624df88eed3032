#include "actors/cache_tier.h"

#include <cmath>
#include <limits>

#include "core/check.h"

namespace cedar::actors {
namespace {

/// What computing a block again costs, relative to the first block of a sequence. Most of it is the same for every block;
/// index scores grow with the rows before it and are as much again after some ten thousand blocks.
double recompute_cost(int64_t index) { return 1.0 + static_cast<double>(index) / 10000.0; }

}  // namespace

CacheTier::CacheTier(int64_t slots) : slots_(slots) {
  for (int64_t slot = slots; slot > 0; --slot) free_.push_back(slot - 1);
}

double CacheTier::worth_of(const Entry& entry) const {
  const double uses = 1 + std::log2(static_cast<double>(entry.uses));
  return clock_ + uses * recompute_cost(entry.index);
}

std::optional<int64_t> CacheTier::store(const model::BlockKey& key, const model::BlockKey& parent,
                                        int64_t index, bool wanted) {
  if (has(key) || slots_ == 0) return {};
  clock_ += 1 / static_cast<double>(slots_);
  Entry entry;
  entry.parent = parent;
  entry.index = index;
  entry.worth = worth_of(entry);
  // The parent must not make room for its child.
  const auto before = entries_.find(parent);
  if (before != entries_.end()) candidates_.erase(candidate(parent, before->second));
  const double most = wanted ? std::numeric_limits<double>::infinity() : entry.worth;
  if (free_.empty() && !evict(most)) {
    if (before != entries_.end() && may_go(parent, before->second)) {
      candidates_.insert(candidate(parent, before->second));
    }
    return {};
  }
  entry.slot = free_.back();
  free_.pop_back();
  ++continuations_[parent];
  if (before != entries_.end()) candidates_.erase(candidate(parent, before->second));
  const auto placed = entries_.emplace(key, entry).first;
  // Its continuations may have come before it.
  if (may_go(key, placed->second)) candidates_.insert(candidate(key, placed->second));
  return placed->second.slot;
}

bool CacheTier::evict(double most) {
  if (candidates_.empty() || candidates_.begin()->worth > most) return false;
  const model::BlockKey key = candidates_.begin()->key;
  candidates_.erase(candidates_.begin());
  const auto gone = entries_.find(key);
  ++evictions_;
  erase(gone);
  return true;
}

void CacheTier::erase(Entries::iterator gone) {
  free_.push_back(gone->second.slot);
  const model::BlockKey parent = gone->second.parent;
  entries_.erase(gone);
  const auto siblings = continuations_.find(parent);
  if (--siblings->second > 0) return;
  continuations_.erase(siblings);
  const auto before = entries_.find(parent);
  if (before != entries_.end() && may_go(parent, before->second)) {
    candidates_.insert(candidate(parent, before->second));
  }
}

void CacheTier::forget(const model::BlockKey& key) {
  const auto at = entries_.find(key);
  CEDAR_ASSERT(at != entries_.end() && at->second.pins == 0, "a pinned block is in use");
  candidates_.erase(candidate(key, at->second));
  erase(at);
}

int64_t CacheTier::pin(const model::BlockKey& key) {
  const auto at = entries_.find(key);
  CEDAR_ASSERT(at != entries_.end(), "pin of a block that is not there");
  Entry& entry = at->second;
  if (entry.pins == 0) {
    candidates_.erase(candidate(key, entry));
    ++pinned_blocks_;
  }
  ++entry.pins;
  ++entry.uses;
  entry.worth = worth_of(entry);
  return entry.slot;
}

std::vector<int64_t> CacheTier::pin_prefix(std::span<const model::BlockKey> keys) {
  std::vector<int64_t> found;
  for (const model::BlockKey& key : keys) {
    if (!has(key)) break;
    found.push_back(pin(key));
  }
  return found;
}

void CacheTier::unpin(const model::BlockKey& key) {
  const auto at = entries_.find(key);
  CEDAR_ASSERT(at != entries_.end() && at->second.pins > 0, "unpin of a block without a pin");
  if (--at->second.pins > 0) return;
  --pinned_blocks_;
  if (may_go(key, at->second)) candidates_.insert(candidate(key, at->second));
}

}  // namespace cedar::actors
