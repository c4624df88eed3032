#pragma once
// A bounded map from block keys to block bytes, least recently used out first. Pinned blocks stay. Not
// thread-safe.

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "model/block_key.h"

namespace cedar::actors {

class BlockMap {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  explicit BlockMap(int64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  /// Keeps the block if room can be made for it without touching pinned ones. A key that is present stays
  /// as it is: equal keys mean equal bytes.
  bool store(const model::BlockKey& key, Bytes bytes);
  /// The leading keys that are present, each pinned once and made the most recently used.
  std::vector<Bytes> pin_prefix(std::span<const model::BlockKey> keys);
  /// REQUIRES: pinned.
  void unpin(const model::BlockKey& key);

  int64_t blocks() const { return static_cast<int64_t>(entries_.size()); }
  int64_t bytes() const { return bytes_; }
  int64_t capacity_bytes() const { return capacity_bytes_; }
  int64_t pinned_blocks() const { return pinned_blocks_; }

 private:
  struct Entry {
    Bytes bytes;
    int64_t pins = 0;
    std::list<model::BlockKey>::iterator use;  // valid while pins == 0
  };
  bool make_room(int64_t bytes);

  int64_t capacity_bytes_;
  int64_t bytes_ = 0;
  int64_t pinned_blocks_ = 0;
  std::unordered_map<model::BlockKey, Entry> entries_;
  std::list<model::BlockKey> unpinned_;  // least recently used first
};

}  // namespace cedar::actors
