#pragma once
// From one row of logits to one token (spec/api.md 7.3). Pure: the same logits, parameters and history give
// the same token on every machine and in every batch.

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "core/result.h"

namespace cedar::engine {

namespace structured {
class TokenMask;
}

struct SamplingParams {
  float temperature = 1.0F;         // [0, 2]; below 1e-5: greedy
  float top_p = 1.0F;               // (0, 1]
  int32_t top_k = 0;                // 0 or -1: off
  float min_p = 0.0F;               // [0, 1]
  float presence_penalty = 0.0F;    // [-2, 2]
  float frequency_penalty = 0.0F;   // [-2, 2]
  float repetition_penalty = 1.0F;  // > 0
  uint64_t seed = 0;                // the caller draws one when the client gave none
  uint32_t choice = 0;              // index of this choice among n
  std::vector<std::pair<TokenId, float>> logit_bias;  // [-100, 100]
  int32_t min_tokens = 0;
  int32_t logprobs = -1;  // -1: none; 0..20: the chosen token's and that many best
};

/// Errors: invalid_argument naming the field, its range and its value.
Status validate(const SamplingParams& params, int64_t vocab_size);

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

struct SampledToken {
  TokenId token = 0;
  std::optional<float> logprob;   // log-softmax of the raw logits
  std::vector<TokenLogprob> top;  // best first
};

/// `prompt` and `output` are the tokens so far, `stop_ids` those that min_tokens masks (EOS first) unless a
/// constraint leaves nothing else. `allowed` is what a constraint leaves; null: everything. It may not be empty.
/// Errors: internal when a logit is NaN.
Result<SampledToken> sample(std::span<const float> logits, const SamplingParams& params,
                            std::span<const TokenId> prompt, std::span<const TokenId> output,
                            std::span<const TokenId> stop_ids,
                            const structured::TokenMask* allowed = nullptr);

}  // namespace cedar::engine
