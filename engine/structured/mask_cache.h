#pragma once
// Masks by automaton and state, least recently used ones first to go.
//
// Engines of several threads share one cache, hence the lock; it is held for a look-up, never while a mask is
// computed.

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "engine/structured/automaton.h"
#include "engine/structured/token_mask.h"

namespace cedar::engine::structured {

/// Any thread may call any method.
class MaskCache {
 public:
  explicit MaskCache(size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  struct Key {
    uint64_t automaton = 0;  // a number that no other automaton of this cache has
    State state;
    friend bool operator==(const Key&, const Key&) = default;
  };

  /// Null when it is not there.
  std::shared_ptr<const TokenMask> find(const Key& key);
  void insert(Key key, std::shared_ptr<const TokenMask> mask);

  struct Counts {
    int64_t hits = 0, misses = 0, masks = 0;
    size_t bytes = 0;
  };
  Counts counts() const;

 private:
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return StateHash{}(key.state) ^ (key.automaton * 0x9e3779b97f4a7c15ULL);
    }
  };
  struct Entry {
    Key key;
    std::shared_ptr<const TokenMask> mask;
    size_t bytes = 0;
  };
  using Order = std::list<Entry>;  // most recent first
  struct PointedHash {
    size_t operator()(const Key* key) const { return KeyHash{}(*key); }
  };
  struct PointedEqual {
    bool operator()(const Key* a, const Key* b) const { return *a == *b; }
  };

  mutable std::mutex mutex_;
  const size_t capacity_bytes_;
  Order order_;
  std::unordered_map<const Key*, Order::iterator, PointedHash, PointedEqual> index_;
  Counts counts_;
};

}  // namespace cedar::engine::structured
