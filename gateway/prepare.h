#pragma once
// From a checked request to what the engine takes: prompt text, token ids, limits, one sequence per choice.
// May take long for a long prompt; runs on a compute thread.

#include <cstdint>
#include <vector>

#include "engine/decode_engine.h"
#include "gateway/api_types.h"
#include "gateway/model_card.h"

namespace cedar::gateway {

struct PreparedRequest {
  ApiRequest api;  // `messages`, `tools` and the prompt's text are moved out
  std::vector<TokenId> prompt;
  std::string echo_text;             // completion with `echo`: goes before the answer
  bool starts_in_reasoning = false;  // the answer begins inside a reasoning block
  std::string constraint;            // of every choice's output; empty: none
  int64_t max_new_tokens = 1;
  uint64_t seed = 0;

  /// The sequence of choice `index`; its id is not set.
  engine::DecodeRequest sequence(uint32_t index) const;
};

/// `fresh_seed` is used when the request brings none. Errors: invalid_argument (the messages),
/// context_too_long (names prompt, limit and context), unsupported (images).
Result<PreparedRequest> prepare(ApiRequest request, const ModelCard& card, uint64_t fresh_seed);

}  // namespace cedar::gateway
