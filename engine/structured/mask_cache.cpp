#include "engine/structured/mask_cache.h"

namespace cedar::engine::structured {
namespace {

/// What an entry holds in memory, roughly.
size_t bytes_of(const State& state, const TokenMask& mask) {
  size_t bytes = mask.bytes() + 256;
  for (const Thread& thread : state.threads) {
    bytes += sizeof(Thread) + thread.size() * sizeof(Frame);
  }
  return bytes;
}

}  // namespace

std::shared_ptr<const TokenMask> MaskCache::find(const Key& key) {
  std::lock_guard lock(mutex_);
  const auto found = index_.find(&key);
  if (found == index_.end()) {
    ++counts_.misses;
    return nullptr;
  }
  ++counts_.hits;
  order_.splice(order_.begin(), order_, found->second);
  return found->second->mask;
}

void MaskCache::insert(Key key, std::shared_ptr<const TokenMask> mask) {
  std::lock_guard lock(mutex_);
  if (index_.contains(&key)) return;  // another thread was faster
  const size_t bytes = bytes_of(key.state, *mask);
  order_.push_front({std::move(key), std::move(mask), bytes});
  index_.emplace(&order_.front().key, order_.begin());
  counts_.bytes += bytes;
  ++counts_.masks;
  while (counts_.bytes > capacity_bytes_ && order_.size() > 1) {
    counts_.bytes -= order_.back().bytes;
    --counts_.masks;
    index_.erase(&order_.back().key);
    order_.pop_back();
  }
}

MaskCache::Counts MaskCache::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace cedar::engine::structured
