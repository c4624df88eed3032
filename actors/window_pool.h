#pragma once
// States of sessions between turns: one each, by the key of the last KV block that it covers, in a region of fixed size, for
// minutes. Knows no bytes, no actors. Not thread-safe.
//
// Who goes when there is no room: a state that a later one of its conversation has replaced, then the one that was not used
// for longest. A state that is being written or read stays.

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <unordered_map>

#include "model/block_key.h"

namespace cedar::actors {

class WindowPool {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  /// `bytes` of one region, handed out in multiples of kAlignment.
  WindowPool(int64_t bytes, Duration ttl);
  static constexpr int64_t kAlignment = 64;

  struct Place {
    int64_t offset = 0;  // in the region
    int64_t bytes = 0;
    int64_t tokens = 0;  // that the state covers
  };
  /// Room for a state, pinned until it is written (finish()); until then nobody finds it. Nothing: it is here already, or
  /// there is no room even when all that may go has gone.
  std::optional<Place> store(const model::BlockKey& key, int64_t bytes, int64_t tokens,
                             TimePoint now);
  /// It has been written. REQUIRES: stored, not finished.
  void finish(const model::BlockKey& key);
  /// It will not be written: gone. REQUIRES: stored, not finished; nobody writes there any more.
  void abandon(const model::BlockKey& key);

  bool has(const model::BlockKey& key) const;
  /// Pinned, and its life begins anew. REQUIRES: has().
  Place pin(const model::BlockKey& key, TimePoint now);
  /// REQUIRES: pinned.
  void unpin(const model::BlockKey& key);
  /// A later state of its conversation is here: it goes first. Unknown keys are ignored.
  void replaced(const model::BlockKey& key);
  void expire(TimePoint now);

  /// That can be found.
  int64_t states() const { return finished_; }
  int64_t bytes() const { return used_; }
  int64_t capacity_bytes() const { return capacity_; }
  int64_t expired() const { return expired_; }
  int64_t evicted() const { return evicted_; }

 private:
  struct Entry {
    Place place;
    TimePoint used;
    int64_t pins = 0;
    bool finished = false;
    std::list<model::BlockKey>::iterator turn;
  };
  using Entries = std::unordered_map<model::BlockKey, Entry>;

  std::optional<int64_t> take(int64_t bytes);
  void erase(Entries::iterator gone);
  bool evict_one();

  int64_t capacity_;
  Duration ttl_;
  Entries entries_;
  std::list<model::BlockKey> turns_;  // who goes first
  std::map<int64_t, int64_t> free_;   // by offset: bytes; neighbours are joined
  int64_t used_ = 0;
  int64_t finished_ = 0;
  int64_t expired_ = 0;
  int64_t evicted_ = 0;
};

}  // namespace cedar::actors
