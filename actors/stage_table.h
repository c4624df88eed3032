#pragma once
// Which stages there are, what was promised of their room, and which one a request goes to. No actor, no thread: the
// router's memory.
//
// A ledger counts what THIS gateway has promised. Other gateways' requests show in the nodes' reports only, which decide
// between stages but refuse nobody: a stage that has less room than its ledger says lets a request wait.

#include <caf/actor_addr.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "actors/membership_messages.h"
#include "actors/messages.h"

namespace cedar::actors {

/// What a request holds at a stage.
struct Need {
  int64_t blocks = 0;
  int64_t tokens = 0;  // to be read; 0 at a decoder
};

/// Room promised to requests.
struct Ledger {
  int64_t sequences = 0;
  int64_t blocks = 0;
  int64_t tokens = 0;
};

template <class Handle>
struct StageEntry {
  std::string node;
  uint64_t generation = 0;
  Handle actor;
  DataEndpoint endpoint;
  StageCapacity capacity;
  Ledger ledger;
  NodeLoad load;  // as last reported
  bool draining = false;
  std::string fingerprint;  // NodeDescription

  bool fits(const Need& need) const {
    return ledger.sequences < capacity.sequences && ledger.blocks + need.blocks <= capacity.blocks;
  }
};
using EncoderEntry = StageEntry<EncoderStageActor>;
using DecoderEntry = StageEntry<DecoderStageActor>;

/// Hash of the first `tokens` tokens of a prompt: equal for prompts that begin alike. 0 for shorter prompts, which have
/// too little in common with anything.
uint64_t prefix_hash(const std::vector<TokenId>& prompt, int64_t tokens);

struct StageCounts {
  size_t encoders = 0, decoders = 0, caches = 0;
};

class StageTable {
 public:
  /// Replaces what was known of a node of this name; promises of a stage whose handle is the same stay. The handles that
  /// are new are returned to be watched.
  std::vector<caf::actor_addr> join(const NodeDescription& node);
  /// False: no such life of the node.
  bool leave(const std::string& name, uint64_t generation);
  /// A stage is dead. False: nobody knows it.
  bool drop(const caf::actor_addr& stage);
  /// True: the node begins or ceases to take new work.
  bool report(const NodeReport& report);
  void clear();

  /// The stage for a request: of those that have room, the one that prompts of the same beginning went to, unless it has
  /// `slack_tokens` more to read than the least loaded one. `avoid` is taken if there is no other. Null: none has room.
  EncoderEntry* choose_encoder(const Need& need, uint64_t prefix, int64_t slack_tokens,
                               const caf::actor_addr& avoid = {});
  DecoderEntry* choose_decoder(const Need& need, const caf::actor_addr& avoid = {});
  /// The cache of all prompts of one beginning. Null: there is none.
  KvCacheActor choose_cache(uint64_t prefix) const;

  /// Counts a promise at a stage, or takes it back. Unknown stages are ignored: their ledger went with them.
  void promise(const caf::actor_addr& stage, const Need& need) { book(stage, need, 1); }
  void release(const caf::actor_addr& stage, const Need& need) { book(stage, need, -1); }

  bool has_encoder() const { return any(encoders_); }
  bool has_decoder() const { return any(decoders_); }
  /// Of the largest stage that takes new work; zeros when there is none.
  StageCapacity largest_encoder() const { return largest(encoders_); }
  StageCapacity largest_decoder() const { return largest(decoders_); }
  /// Those that take new work.
  StageCounts counts() const;
  /// Sums of the last reports.
  NodeLoad total_load() const;

 private:
  template <class Entry>
  static bool any(const std::vector<Entry>& stages) {
    return std::any_of(stages.begin(), stages.end(), [](const Entry& e) { return !e.draining; });
  }
  template <class Entry>
  static StageCapacity largest(const std::vector<Entry>& stages) {
    StageCapacity most;
    for (const Entry& stage : stages) {
      if (!stage.draining && stage.capacity.blocks >= most.blocks) most = stage.capacity;
    }
    return most;
  }
  void book(const caf::actor_addr& stage, const Need& need, int64_t sign);

  struct CacheEntry {
    std::string node;
    uint64_t generation = 0;
    KvCacheActor actor;
    bool draining = false;
  };
  std::vector<EncoderEntry> encoders_;
  std::vector<DecoderEntry> decoders_;
  std::vector<CacheEntry> caches_;
};

}  // namespace cedar::actors
