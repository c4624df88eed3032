#pragma once
// Constrained decoding as the decode engine uses it: rules in, one state per sequence, a mask per step.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "core/result.h"
#include "engine/structured/mask_cache.h"
#include "engine/structured/output_rules.h"
#include "engine/structured/token_mask.h"
#include "model/tokenizer.h"

namespace cedar::engine::structured {

class CompiledRules;

/// Where one output stands. A value: a copy can be advanced over drafted tokens and thrown away.
class OutputState {
 public:
  /// The tokens that may come next; the end token exactly when the output is complete. Not empty unless
  /// finished(). Errors: unsupported, when a schema is so ambiguous that its masks cannot be computed within
  /// bounds, or when it forces text that would end the answer.
  Result<std::shared_ptr<const TokenMask>> mask() const;
  /// Takes a token of mask(). False, and no change, for any other.
  bool accept(TokenId token);
  bool complete() const { return state_.complete; }
  /// The end token was taken.
  bool finished() const { return finished_; }

 private:
  friend class Constraints;
  OutputState(std::shared_ptr<CompiledRules> rules, State state)
      : rules_(std::move(rules)), state_(std::move(state)) {}

  std::shared_ptr<CompiledRules> rules_;
  State state_;
  bool finished_ = false;
};

/// Compiled rules and masks of one vocabulary, shared by every sequence and engine of a process. Any thread may
/// call any method, of this and of the states it makes; a lock per set of rules keeps two masks of the same
/// rules from being computed at once, others do not wait for it.
class Constraints {
 public:
  struct Options {
    size_t compiled_rules = 64;                    // kept, least recently used ones first to go
    size_t mask_bytes = size_t{64} * 1024 * 1024;  // of all masks kept
  };
  static std::shared_ptr<Constraints> create(std::shared_ptr<const model::Tokenizer> tokenizer,
                                             int64_t vocab_size, TokenId eos) {
    return create(std::move(tokenizer), vocab_size, eos, Options());
  }
  static std::shared_ptr<Constraints> create(std::shared_ptr<const model::Tokenizer> tokenizer,
                                             int64_t vocab_size, TokenId eos,
                                             const Options& options);
  ~Constraints();

  /// The state before the first token of an output under these rules (to_text() of output_rules.h).
  /// Errors: invalid_argument, unsupported.
  Result<OutputState> start(const std::string& rules_text);

  MaskCache::Counts mask_counts() const;

 private:
  struct Impl;
  explicit Constraints(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cedar::engine::structured
