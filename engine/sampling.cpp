#include "engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>

#include "engine/sampling_rules.h"
#include "engine/structured/token_mask.h"

namespace cedar::engine {
namespace {

Status out_of_range(const char* field, const char* range, double value) {
  std::string text = std::to_string(value);
  return make_error(Errc::invalid_argument,
                    std::string(field) + ": must be " + range + ", got " + text);
}

float log_sum_exp(std::span<const float> logits) {
  float peak = -std::numeric_limits<float>::infinity();
  for (float l : logits) peak = std::max(peak, l);
  double sum = 0;
  for (float l : logits) sum += std::exp(static_cast<double>(l - peak));
  return peak + static_cast<float>(std::log(sum));
}

void apply_penalties(std::vector<float>& logits, const SamplingParams& params,
                     std::span<const TokenId> prompt, std::span<const TokenId> output) {
  if (params.repetition_penalty != 1.0F) {
    std::unordered_map<TokenId, bool> seen;
    for (auto history : {prompt, output}) {
      for (TokenId id : history) seen.emplace(id, true);
    }
    for (const auto& [id, unused] : seen) {
      float& l = logits[static_cast<size_t>(id)];
      l = l > 0 ? l / params.repetition_penalty : l * params.repetition_penalty;
    }
  }
  if (params.frequency_penalty != 0 || params.presence_penalty != 0) {
    std::unordered_map<TokenId, int32_t> counts;
    for (TokenId id : output) ++counts[id];
    for (const auto& [id, count] : counts) {
      logits[static_cast<size_t>(id)] -=
          params.frequency_penalty * static_cast<float>(count) + params.presence_penalty;
    }
  }
}

TokenId argmax(std::span<const float> values) {
  return static_cast<TokenId>(std::max_element(values.begin(), values.end()) - values.begin());
}

/// Survivors of min-p, top-k and top-p, best first. `scaled` are the logits over the temperature.
std::vector<TokenLogprob> filter(std::span<const float> scaled, const SamplingParams& params) {
  const float total = log_sum_exp(scaled);
  const float peak = *std::max_element(scaled.begin(), scaled.end());
  const float floor =
      params.min_p > 0 ? peak + std::log(params.min_p) : -std::numeric_limits<float>::infinity();
  std::vector<TokenLogprob> kept;
  for (size_t i = 0; i < scaled.size(); ++i) {
    if (scaled[i] >= floor && scaled[i] > -std::numeric_limits<float>::infinity()) {
      kept.push_back({static_cast<TokenId>(i), scaled[i] - total});
    }
  }
  std::sort(kept.begin(), kept.end(), better);
  keep_top_k(kept, params);
  if (params.top_p < 1.0F) keep_top_p(kept, params.top_p);
  return kept;
}

}  // namespace

Status validate(const SamplingParams& p, int64_t vocab_size) {
  const auto outside = [](float v, float low, float high) { return !(v >= low && v <= high); };
  if (outside(p.temperature, 0, 2)) return out_of_range("temperature", "in [0, 2]", p.temperature);
  if (!(p.top_p > 0 && p.top_p <= 1)) return out_of_range("top_p", "in (0, 1]", p.top_p);
  if (p.top_k < -1) return out_of_range("top_k", "-1, 0 or a positive count", p.top_k);
  if (outside(p.min_p, 0, 1)) return out_of_range("min_p", "in [0, 1]", p.min_p);
  if (outside(p.presence_penalty, -2, 2)) {
    return out_of_range("presence_penalty", "in [-2, 2]", p.presence_penalty);
  }
  if (outside(p.frequency_penalty, -2, 2)) {
    return out_of_range("frequency_penalty", "in [-2, 2]", p.frequency_penalty);
  }
  if (!(p.repetition_penalty > 0 && std::isfinite(p.repetition_penalty))) {
    return out_of_range("repetition_penalty", "greater than 0", p.repetition_penalty);
  }
  if (p.min_tokens < 0) return out_of_range("min_tokens", "at least 0", p.min_tokens);
  if (p.logprobs < -1 || p.logprobs > 20) {
    return out_of_range("top_logprobs", "in [0, 20]", p.logprobs);
  }
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < 0 || id >= vocab_size)
      return out_of_range("logit_bias", "a token id of the model", id);
    if (outside(bias, -100, 100)) return out_of_range("logit_bias", "in [-100, 100]", bias);
  }
  return {};
}

Result<SampledToken> sample(std::span<const float> raw, const SamplingParams& params,
                            std::span<const TokenId> prompt, std::span<const TokenId> output,
                            std::span<const TokenId> stop_ids,
                            const structured::TokenMask* allowed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> logits(raw.begin(), raw.end());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) {
      return make_error(Errc::internal, "logit of token " + std::to_string(i) + " is NaN");
    }
    logits[i] = std::min(logits[i], std::numeric_limits<float>::max());
  }
  SampledToken result;
  float normaliser = 0;
  if (params.logprobs >= 0) {
    normaliser = log_sum_exp(logits);
    const auto count = std::min(static_cast<size_t>(params.logprobs), logits.size());
    std::vector<TokenLogprob> all(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      all[i] = {static_cast<TokenId>(i), logits[i] - normaliser};
    }
    std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count), all.end(),
                      better);
    all.resize(count);
    result.top = std::move(all);
  }

  if (allowed != nullptr) allowed->apply(logits);
  if (masks_stops(params, output.size(), stop_ids, allowed)) {
    for (TokenId id : stop_ids) logits[static_cast<size_t>(id)] = -kInfinity;
  }
  for (const auto& [id, bias] : params.logit_bias) logits[static_cast<size_t>(id)] += bias;
  apply_penalties(logits, params, prompt, output);

  if (is_greedy(params)) {
    result.token = argmax(logits);
  } else {
    for (float& l : logits) l /= divisor(params);
    NoisyBest best(params, output.size());
    if (!filters(params)) {
      for (size_t i = 0; i < logits.size(); ++i) best.consider(static_cast<TokenId>(i), logits[i]);
    } else {
      for (const TokenLogprob& t : filter(logits, params)) best.consider(t.token, t.logprob);
    }
    result.token = best.token();
  }
  if (params.logprobs >= 0) {
    result.logprob =
        std::min(raw[static_cast<size_t>(result.token)], std::numeric_limits<float>::max()) -
        normaliser;
  }
  return result;
}

}  // namespace cedar::engine
