#pragma once
// Lookups of a cache with two tiers: what is in memory is pinned, what is on disk behind or among it is read into slots of
// the memory, and a lookup is complete when all of its reads have ended. Lookups of one prefix share its reads. A block
// that cannot be read, or finds no slot, ends the prefix before it.
//
// A slot belongs to its read until that has ended, whoever still waits for it: nobody else is given it before. One thread.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "actors/cache_disk.h"
#include "actors/cache_tier.h"
#include "core/result.h"

namespace cedar::actors {

class PrefixLookups {
 public:
  /// Begins a read of a block into a slot; its end, with the same number, comes to read_ended() and not from inside this call.
  using Read = std::function<void(uint64_t number, const model::BlockKey& key, int64_t slot)>;

  /// All of it outlives this.
  PrefixLookups(CacheTier& tier, const CacheDisk& disk, Read read)
      : tier_(tier), disk_(disk), read_(std::move(read)) {}

  /// Pins the longest prefix of the keys over both tiers, and has its missing blocks read. The lookup's number.
  uint64_t begin(std::span<const model::BlockKey> keys);
  /// Reads that it waits for.
  int64_t missing(uint64_t lookup) const {
    return static_cast<int64_t>(lookups_.at(lookup).missing.size());
  }

  struct Found {
    std::vector<model::BlockKey> keys;  // each pinned once, for the caller to unpin
    std::vector<int64_t> slots;
    int64_t from_disk = 0;  // of them
  };
  /// Ends the lookup with what is here by now.
  Found take(uint64_t lookup);

  /// The lookups that have nothing to wait for any more. Numbers of no read are ignored.
  std::vector<uint64_t> read_ended(uint64_t number, const Status& status);

 private:
  struct Lookup {
    std::vector<model::BlockKey> keys;
    std::vector<int64_t> slots;
    std::vector<bool> from_disk;
    std::set<size_t> missing;  // of the keys
  };
  struct Load {
    int64_t slot = 0;
    uint64_t number = 0;                 // 0: not begun
    std::map<uint64_t, size_t> lookups;  // that wait for it, and which of their keys it is
  };
  using Loads = std::unordered_map<model::BlockKey, Load>;

  size_t known(std::span<const model::BlockKey> keys) const;
  bool place(uint64_t id, Lookup& lookup, size_t index);
  void wait_for(uint64_t id, Lookup& lookup, size_t index);
  /// The lookup ends before its key `count`.
  void shorten(uint64_t id, Lookup& lookup, size_t count);
  void pump();

  CacheTier& tier_;
  const CacheDisk& disk_;
  Read read_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, Lookup> lookups_;
  Loads loads_;
  std::deque<model::BlockKey> queue_;  // loads to begin; some are gone
  std::map<uint64_t, model::BlockKey> reads_;
};

}  // namespace cedar::actors
