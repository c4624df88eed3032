#include "actors/stage_table.h"

#include <span>

#include "core/crc32c.h"

namespace cedar::actors {
namespace {

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// Every encoder draws a number for every prefix, the highest wins: when one comes or goes, only its prefixes move.
uint64_t draw(uint64_t prefix, const std::string& node) {
  return mix(prefix ^ mix(crc32c(std::as_bytes(std::span(node)))));
}

int64_t tokens_to_read(const EncoderEntry& stage) {
  return std::max(stage.ledger.tokens, stage.load.encoder_queued_tokens);
}

int64_t sequences_held(const DecoderEntry& stage) {
  return std::max(stage.ledger.sequences, stage.load.decoder_sequences);
}

template <class Entry>
void replace(std::vector<Entry>& stages, Entry fresh, std::vector<caf::actor_addr>& to_watch) {
  const auto known = std::find_if(stages.begin(), stages.end(),
                                  [&](const Entry& e) { return e.node == fresh.node; });
  const bool same = known != stages.end() && fresh.actor && known->actor == fresh.actor;
  if constexpr (requires { fresh.ledger; }) {
    if (same) fresh.ledger = known->ledger;
  }
  if (known != stages.end()) stages.erase(known);
  if (!fresh.actor) return;
  if (!same) to_watch.push_back(fresh.actor.address());
  stages.push_back(std::move(fresh));
}

template <class Entry, class Predicate>
bool erase_if(std::vector<Entry>& stages, Predicate predicate) {
  const auto kept = std::remove_if(stages.begin(), stages.end(), predicate);
  const bool found = kept != stages.end();
  stages.erase(kept, stages.end());
  return found;
}

/// The best of those that take new work and have room; `avoid` only if it is alone.
template <class Entry, class Better>
Entry* choose(std::vector<Entry>& stages, const Need& need, const caf::actor_addr& avoid,
              Better better) {
  Entry* best = nullptr;
  Entry* avoided = nullptr;
  bool others = false;
  for (Entry& stage : stages) {
    if (stage.draining) continue;
    const bool is_avoided = stage.actor.address() == avoid;
    others = others || !is_avoided;
    if (!stage.fits(need)) continue;
    if (is_avoided) avoided = &stage;
    else if (best == nullptr || better(stage, *best)) best = &stage;
  }
  return best != nullptr || others ? best : avoided;
}

}  // namespace

uint64_t prefix_hash(const std::vector<TokenId>& prompt, int64_t tokens) {
  if (static_cast<int64_t>(prompt.size()) < tokens || tokens == 0) return 0;
  uint64_t hash = 0x9E3779B97F4A7C15ull;
  for (int64_t i = 0; i < tokens; ++i) {
    hash = mix(hash + static_cast<uint64_t>(prompt[static_cast<size_t>(i)]) + 1);
  }
  return hash;
}

std::vector<caf::actor_addr> StageTable::join(const NodeDescription& node) {
  std::vector<caf::actor_addr> to_watch;
  const DataEndpoint endpoint{node.data_host, node.data_port, node.id.value, node.generation};
  replace(encoders_,
          EncoderEntry{node.name,
                       node.generation,
                       node.encoder,
                       endpoint,
                       node.encoder_capacity,
                       {},
                       {},
                       false,
                       node.fingerprint},
          to_watch);
  replace(decoders_,
          DecoderEntry{node.name,
                       node.generation,
                       node.decoder,
                       endpoint,
                       node.decoder_capacity,
                       {},
                       {},
                       false,
                       {}},
          to_watch);
  replace(caches_, CacheEntry{node.name, node.generation, node.cache, false}, to_watch);
  return to_watch;
}

bool StageTable::leave(const std::string& name, uint64_t generation) {
  const auto same = [&](const auto& e) { return e.node == name && e.generation == generation; };
  const bool encoder = erase_if(encoders_, same);
  const bool decoder = erase_if(decoders_, same);
  const bool cache = erase_if(caches_, same);
  return encoder || decoder || cache;
}

bool StageTable::drop(const caf::actor_addr& stage) {
  const auto same = [&](const auto& e) { return e.actor.address() == stage; };
  return erase_if(encoders_, same) || erase_if(decoders_, same) || erase_if(caches_, same);
}

bool StageTable::report(const NodeReport& report) {
  bool changed = false;
  const auto update = [&](auto& stages) {
    for (auto& stage : stages) {
      if (stage.node != report.name || stage.generation != report.generation) continue;
      if constexpr (requires { stage.load; }) stage.load = report.load;
      changed = changed || stage.draining != report.draining;
      stage.draining = report.draining;
    }
  };
  update(encoders_);
  update(decoders_);
  update(caches_);
  return changed;
}

void StageTable::clear() {
  encoders_.clear();
  decoders_.clear();
  caches_.clear();
}

EncoderEntry* StageTable::choose_encoder(const Need& need, uint64_t prefix, int64_t slack_tokens,
                                         const caf::actor_addr& avoid) {
  EncoderEntry* const idle =
      choose(encoders_, need, avoid, [](const EncoderEntry& a, const EncoderEntry& b) {
        return tokens_to_read(a) < tokens_to_read(b);
      });
  if (idle == nullptr || prefix == 0) return idle;
  EncoderEntry* const preferred =
      choose(encoders_, need, avoid, [&](const EncoderEntry& a, const EncoderEntry& b) {
        return draw(prefix, a.node) > draw(prefix, b.node);
      });
  const bool overloaded = tokens_to_read(*preferred) > tokens_to_read(*idle) + slack_tokens;
  return overloaded ? idle : preferred;
}

DecoderEntry* StageTable::choose_decoder(const Need& need, const caf::actor_addr& avoid) {
  return choose(decoders_, need, avoid, [](const DecoderEntry& a, const DecoderEntry& b) {
    return sequences_held(a) < sequences_held(b);
  });
}

KvCacheActor StageTable::choose_cache(uint64_t prefix) const {
  const CacheEntry* best = nullptr;
  for (const CacheEntry& cache : caches_) {
    if (cache.draining) continue;
    if (best == nullptr || draw(prefix, cache.node) > draw(prefix, best->node)) best = &cache;
  }
  return best != nullptr ? best->actor : KvCacheActor{};
}

StageCounts StageTable::counts() const {
  const auto count = [](const auto& entries) {
    return static_cast<size_t>(std::count_if(entries.begin(), entries.end(),
                                             [](const auto& entry) { return !entry.draining; }));
  };
  return {count(encoders_), count(decoders_), count(caches_)};
}

NodeLoad StageTable::total_load() const {
  NodeLoad sum;
  for (const EncoderEntry& stage : encoders_) {
    sum.encoder_requests += stage.load.encoder_requests;
    sum.encoder_queued_tokens += stage.load.encoder_queued_tokens;
    sum.encoder_free_blocks += stage.load.encoder_free_blocks;
  }
  for (const DecoderEntry& stage : decoders_) {
    sum.decoder_sequences += stage.load.decoder_sequences;
    sum.decoder_free_blocks += stage.load.decoder_free_blocks;
    sum.decoder_total_blocks += stage.load.decoder_total_blocks;
  }
  return sum;
}

void StageTable::book(const caf::actor_addr& stage, const Need& need, int64_t sign) {
  const auto add = [&](auto& stages) {
    for (auto& entry : stages) {
      if (entry.actor.address() != stage) continue;
      entry.ledger.sequences += sign;
      entry.ledger.blocks += sign * need.blocks;
      entry.ledger.tokens += sign * need.tokens;
    }
  };
  add(encoders_);
  add(decoders_);
}

}  // namespace cedar::actors
