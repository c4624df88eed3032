#include "actors/block_map.h"

#include <utility>

#include "core/check.h"

namespace cedar::actors {

bool BlockMap::store(const model::BlockKey& key, Bytes bytes) {
  if (entries_.count(key) != 0) return true;
  const auto size = static_cast<int64_t>(bytes->size());
  if (!make_room(size)) return false;
  bytes_ += size;
  const auto use = unpinned_.insert(unpinned_.end(), key);
  entries_.emplace(key, Entry{std::move(bytes), 0, use});
  return true;
}

bool BlockMap::make_room(int64_t bytes) {
  if (bytes > capacity_bytes_) return false;
  while (bytes_ + bytes > capacity_bytes_ && !unpinned_.empty()) {
    const auto oldest = entries_.find(unpinned_.front());
    bytes_ -= static_cast<int64_t>(oldest->second.bytes->size());
    entries_.erase(oldest);
    unpinned_.pop_front();
  }
  return bytes_ + bytes <= capacity_bytes_;
}

std::vector<BlockMap::Bytes> BlockMap::pin_prefix(std::span<const model::BlockKey> keys) {
  std::vector<Bytes> found;
  for (const model::BlockKey& key : keys) {
    const auto entry = entries_.find(key);
    if (entry == entries_.end()) break;
    if (entry->second.pins++ == 0) {
      unpinned_.erase(entry->second.use);
      ++pinned_blocks_;
    }
    found.push_back(entry->second.bytes);
  }
  return found;
}

void BlockMap::unpin(const model::BlockKey& key) {
  const auto entry = entries_.find(key);
  CEDAR_ASSERT(entry != entries_.end() && entry->second.pins > 0, "unpin of a block without a pin");
  if (--entry->second.pins == 0) {
    entry->second.use = unpinned_.insert(unpinned_.end(), key);
    --pinned_blocks_;
  }
}

}  // namespace cedar::actors
