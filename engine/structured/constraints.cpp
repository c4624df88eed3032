#include "engine/structured/constraints.h"

#include <list>
#include <utility>

#include "engine/structured/output_compiler.h"
#include "engine/structured/output_markers.h"
#include "engine/structured/state_table.h"
#include "engine/structured/token_trie.h"

namespace cedar::engine::structured {
namespace {

/// What does not depend on rules.
struct Vocabulary {
  std::shared_ptr<const model::Tokenizer> tokenizer;
  int64_t size = 0;
  TokenId eos = 1;
  MarkerTokens markers;
  ForbiddenText forbidden;
  TokenTrie trie;
};

std::shared_ptr<const Vocabulary> make_vocabulary(std::shared_ptr<const model::Tokenizer> tokenizer,
                                                  int64_t size, TokenId eos) {
  MarkerTokens markers{tokenizer->added_token_id(kEndOfReasoning),
                       tokenizer->added_token_id(kCallMarkup)};
  // A marker that has no token must be spelled out, so it cannot be forbidden.
  std::vector<std::string> forbidden;
  if (markers.end_of_reasoning >= 0) forbidden.emplace_back(kEndOfReasoning);
  if (markers.call_markup >= 0) forbidden.emplace_back(kCallMarkup);
  TokenTrie trie(*tokenizer);
  return std::make_shared<const Vocabulary>(Vocabulary{std::move(tokenizer), size, eos, markers,
                                                       ForbiddenText(forbidden), std::move(trie)});
}

}  // namespace

class CompiledRules {
 public:
  CompiledRules(std::shared_ptr<const Vocabulary> vocabulary, std::shared_ptr<MaskCache> masks,
                uint64_t number, Graph graph)
      : vocabulary_(std::move(vocabulary)),
        masks_(std::move(masks)),
        number_(number),
        automaton_{std::move(graph), vocabulary_->forbidden},
        table_(automaton_) {}

  State start() const { return start_state(automaton_); }
  TokenId eos() const { return vocabulary_->eos; }

  Result<std::shared_ptr<const TokenMask>> mask(const State& state) {
    // One byte more than a token has steps, so that no token can tell the difference.
    MaskCache::Key key{number_, with_counters_up_to(state, vocabulary_->trie.longest() + 1)};
    if (auto known = masks_->find(key)) return known;
    std::lock_guard lock(mutex_);
    if (auto known = masks_->find(key)) return known;  // computed while we waited
    CEDAR_TRY(auto mask, compute(key.state));
    masks_->insert(std::move(key), mask);
    return mask;
  }

  /// Dead when the token cannot come.
  State advance(const State& state, TokenId token) {
    const model::Tokenizer& tokenizer = *vocabulary_->tokenizer;
    if (!tokenizer.contains(token)) return {};
    if (tokenizer.is_added(token)) return after_token(automaton_, state, token);
    std::lock_guard lock(mutex_);
    table_.reset_if_full();
    StateTable::Id id = table_.id_of(state);
    for (const char c : tokenizer.token_bytes(token)) {
      if (id == StateTable::kDead) return {};
      id = table_.next(id, static_cast<uint8_t>(c));
    }
    return id == StateTable::kDead ? State() : table_.state(id);
  }

 private:
  /// Depth first through the vocabulary; where a byte has no way on, all longer tokens are skipped.
  Result<std::shared_ptr<const TokenMask>> compute(const State& state) {
    table_.reset_if_full();
    auto mask = std::make_shared<TokenMask>(vocabulary_->size);
    const auto allow = [&](TokenId id) {
      if (id >= 0 && id < vocabulary_->size) mask->allow(id);
    };
    const TokenTrie& trie = vocabulary_->trie;
    std::vector<StateTable::Id> path(static_cast<size_t>(trie.longest()) + 1);
    path[0] = table_.id_of(state);
    const auto count = static_cast<int32_t>(trie.entries().size());
    for (int32_t i = path[0] == StateTable::kDead ? count : 0; i < count;) {
      const TokenTrie::Entry& entry = trie.entries()[static_cast<size_t>(i)];
      const StateTable::Id next = table_.next(path[entry.depth - 1U], entry.byte);
      if (next == StateTable::kDead) {
        i = entry.next;
        continue;
      }
      path[entry.depth] = next;
      allow(entry.token);
      ++i;
      if (table_.exhausted()) {
        return make_error(Errc::unsupported,
                          "the schema is too ambiguous: one token has more than " +
                              std::to_string(StateTable::kMost) + " ways to go on");
      }
    }
    for (const TokenId id : takeable_tokens(automaton_, state)) allow(id);
    if (state.complete) allow(vocabulary_->eos);
    if (mask->empty()) {
      return make_error(Errc::unsupported,
                        "the schema leaves no token to go on with, because it wants text that "
                        "spells markup of the answer");
    }
    return std::shared_ptr<const TokenMask>(std::move(mask));
  }

  const std::shared_ptr<const Vocabulary> vocabulary_;
  const std::shared_ptr<MaskCache> masks_;
  const uint64_t number_;
  const Automaton automaton_;
  std::mutex mutex_;  // of table_
  StateTable table_;
};

Result<std::shared_ptr<const TokenMask>> OutputState::mask() const {
  if (finished_) return make_error(Errc::internal, "the output has ended");
  return rules_->mask(state_);
}

bool OutputState::accept(TokenId token) {
  if (finished_) return false;
  if (token == rules_->eos()) {
    finished_ = state_.complete;
    return finished_;
  }
  State next = rules_->advance(state_, token);
  if (next.dead()) return false;
  state_ = std::move(next);
  return true;
}

struct Constraints::Impl {
  std::shared_ptr<const model::Tokenizer> tokenizer;
  int64_t vocab_size;
  TokenId eos;
  Options options;
  std::shared_ptr<MaskCache> masks;

  std::mutex mutex;                              // of what follows
  std::shared_ptr<const Vocabulary> vocabulary;  // made when first needed
  uint64_t next_number = 0;
  using Entry = std::pair<std::string, std::shared_ptr<CompiledRules>>;
  std::list<Entry> compiled;  // most recent first
};

Constraints::Constraints(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Constraints::~Constraints() = default;

std::shared_ptr<Constraints> Constraints::create(std::shared_ptr<const model::Tokenizer> tokenizer,
                                                 int64_t vocab_size, TokenId eos,
                                                 const Options& options) {
  auto impl = std::make_unique<Impl>();
  impl->tokenizer = std::move(tokenizer);
  impl->vocab_size = vocab_size;
  impl->eos = eos;
  impl->options = options;
  impl->masks = std::make_shared<MaskCache>(options.mask_bytes);
  return std::shared_ptr<Constraints>(new Constraints(std::move(impl)));
}

Result<OutputState> Constraints::start(const std::string& rules_text) {
  Impl& impl = *impl_;
  std::lock_guard lock(impl.mutex);
  for (auto entry = impl.compiled.begin(); entry != impl.compiled.end(); ++entry) {
    if (entry->first != rules_text) continue;
    impl.compiled.splice(impl.compiled.begin(), impl.compiled, entry);
    return OutputState(entry->second, entry->second->start());
  }
  CEDAR_TRY(const OutputRules rules, output_rules_from_text(rules_text));
  if (!impl.vocabulary) {
    impl.vocabulary = make_vocabulary(impl.tokenizer, impl.vocab_size, impl.eos);
  }
  CEDAR_TRY(Graph graph, compile_output(rules, impl.vocabulary->markers));
  auto compiled = std::make_shared<CompiledRules>(impl.vocabulary, impl.masks, impl.next_number++,
                                                  std::move(graph));
  impl.compiled.emplace_front(rules_text, compiled);
  if (impl.compiled.size() > impl.options.compiled_rules) impl.compiled.pop_back();
  return OutputState(compiled, compiled->start());
}

MaskCache::Counts Constraints::mask_counts() const { return impl_->masks->counts(); }

}  // namespace cedar::engine::structured
