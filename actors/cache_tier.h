#pragma once
// Which KV blocks a cache holds and where: a fixed number of slots, a table by block key, and who goes when there is no
// room. Knows no bytes, no actors. Not thread-safe.
//
// Eviction weighs what a block's loss costs against how likely it is asked for again: a block is worth the time of its last
// use, plus one for its first use and one more for every doubling of its uses, times its cost. Time is counted in blocks that
// came, kept or not, as a share of the slots: what nobody uses any more is worth less than a new block after that many times
// the whole memory has come by. A new block takes the place of one that is worth less than itself, or is not kept; so a document
// that is read once does not push out what everybody uses, however long it is. Only blocks that nothing present continues may
// go: without its beginning the rest of a chain could never be found.

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "model/block_key.h"

namespace cedar::actors {

class CacheTier {
 public:
  explicit CacheTier(int64_t slots);

  bool has(const model::BlockKey& key) const { return entries_.count(key) != 0; }

  /// A slot for block `index` of its sequence, behind `parent`; its bytes must be there before anything else is asked.
  /// Nothing: the key is present (equal keys mean equal content), or everything else is pinned or worth more. `wanted`: it is
  /// about to be used, whatever others are worth.
  std::optional<int64_t> store(const model::BlockKey& key, const model::BlockKey& parent,
                               int64_t index, bool wanted = false);

  /// Its slot, pinned once more and counted as used. REQUIRES: present.
  int64_t pin(const model::BlockKey& key);
  /// Slots of the leading keys that are present, each pinned once and counted as used.
  std::vector<int64_t> pin_prefix(std::span<const model::BlockKey> keys);
  /// REQUIRES: pinned.
  void unpin(const model::BlockKey& key);
  /// Its bytes turned out to be of no use. REQUIRES: present, not pinned.
  void forget(const model::BlockKey& key);

  int64_t slots() const { return slots_; }
  int64_t blocks() const { return static_cast<int64_t>(entries_.size()); }
  int64_t pinned_blocks() const { return pinned_blocks_; }
  int64_t evictions() const { return evictions_; }

 private:
  struct Entry {
    model::BlockKey parent;
    int64_t index = 0;
    int64_t slot = 0;
    int64_t pins = 0;
    int64_t uses = 1;
    double worth = 0;
  };
  using Entries = std::unordered_map<model::BlockKey, Entry>;
  /// Least worth first; of equals the deeper one.
  struct Candidate {
    double worth;
    int64_t index;
    model::BlockKey key;
    friend bool operator<(const Candidate& a, const Candidate& b) {
      if (a.worth != b.worth) return a.worth < b.worth;
      if (a.index != b.index) return a.index > b.index;
      return a.key < b.key;
    }
  };

  static Candidate candidate(const model::BlockKey& key, const Entry& entry) {
    return {entry.worth, entry.index, key};
  }
  bool may_go(const model::BlockKey& key, const Entry& entry) const {
    return entry.pins == 0 && continuations_.count(key) == 0;
  }
  double worth_of(const Entry& entry) const;
  /// The one that is worth least, unless that is more than `most`.
  bool evict(double most);
  void erase(Entries::iterator gone);

  int64_t slots_;
  std::vector<int64_t> free_;
  Entries entries_;
  std::unordered_map<model::BlockKey, int64_t>
      continuations_;               // present children of a key, itself present or not
  std::set<Candidate> candidates_;  // those that may go
  double clock_ = 0;
  int64_t pinned_blocks_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace cedar::actors
