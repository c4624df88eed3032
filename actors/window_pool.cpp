#include "actors/window_pool.h"

#include <iterator>

#include "core/check.h"
#include "core/units.h"

namespace cedar::actors {

WindowPool::WindowPool(int64_t bytes, Duration ttl)
    : capacity_(bytes / kAlignment * kAlignment), ttl_(ttl) {
  if (capacity_ > 0) free_.emplace(0, capacity_);
}

std::optional<WindowPool::Place> WindowPool::store(const model::BlockKey& key, int64_t bytes,
                                                   int64_t tokens, TimePoint now) {
  if (bytes < 1 || bytes > capacity_ || entries_.count(key) != 0) return {};
  auto offset = take(bytes);
  while (!offset && evict_one()) offset = take(bytes);
  if (!offset) return {};
  Entry entry;
  entry.place = {*offset, bytes, tokens};
  entry.used = now;
  entry.pins = 1;
  entry.turn = turns_.insert(turns_.end(), key);
  entries_.emplace(key, entry);
  return entry.place;
}

/// The first hole that is large enough.
std::optional<int64_t> WindowPool::take(int64_t bytes) {
  bytes = align_up(bytes, kAlignment);
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    const auto [offset, room] = *hole;
    if (room < bytes) continue;
    free_.erase(hole);
    if (room > bytes) free_.emplace(offset + bytes, room - bytes);
    used_ += bytes;
    return offset;
  }
  return {};
}

void WindowPool::erase(Entries::iterator gone) {
  int64_t offset = gone->second.place.offset;
  int64_t bytes = align_up(gone->second.place.bytes, kAlignment);
  used_ -= bytes;
  finished_ -= gone->second.finished ? 1 : 0;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      free_.erase(before);
    }
  }
  free_.emplace(offset, bytes);
  turns_.erase(gone->second.turn);
  entries_.erase(gone);
}

bool WindowPool::evict_one() {
  for (const model::BlockKey& key : turns_) {
    const auto at = entries_.find(key);
    if (at->second.pins > 0) continue;
    erase(at);
    ++evicted_;
    return true;
  }
  return false;
}

void WindowPool::finish(const model::BlockKey& key) {
  entries_.at(key).finished = true;
  ++finished_;
  unpin(key);
}

void WindowPool::abandon(const model::BlockKey& key) {
  const auto at = entries_.find(key);
  CEDAR_ASSERT(at != entries_.end() && !at->second.finished, "a state that is here is given up");
  erase(at);
}

bool WindowPool::has(const model::BlockKey& key) const {
  const auto at = entries_.find(key);
  return at != entries_.end() && at->second.finished;
}

WindowPool::Place WindowPool::pin(const model::BlockKey& key, TimePoint now) {
  const auto at = entries_.find(key);
  CEDAR_ASSERT(at != entries_.end() && at->second.finished, "pin of a state that is not here");
  Entry& entry = at->second;
  ++entry.pins;
  entry.used = now;
  turns_.splice(turns_.end(), turns_, entry.turn);
  return entry.place;
}

void WindowPool::unpin(const model::BlockKey& key) {
  const auto at = entries_.find(key);
  CEDAR_ASSERT(at != entries_.end() && at->second.pins > 0, "unpin of a state without a pin");
  --at->second.pins;
}

void WindowPool::replaced(const model::BlockKey& key) {
  const auto at = entries_.find(key);
  if (at != entries_.end()) turns_.splice(turns_.begin(), turns_, at->second.turn);
}

void WindowPool::expire(TimePoint now) {
  for (auto at = entries_.begin(); at != entries_.end();) {
    const auto next = std::next(at);
    if (at->second.pins == 0 && at->second.used + ttl_ <= now) {
      erase(at);
      ++expired_;
    }
    at = next;
  }
}

}  // namespace cedar::actors
