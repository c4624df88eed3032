#include "engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>

#include "engine/structured/token_mask.h"

namespace cedar::engine {
namespace {

constexpr float kGreedyBelow = 1e-5F;
constexpr float kLowestTemperature = 0.01F;

Status out_of_range(const char* field, const char* range, double value) {
  std::string text = std::to_string(value);
  return make_error(Errc::invalid_argument,
                    std::string(field) + ": must be " + range + ", got " + text);
}

/// SplitMix64's finaliser: a bijection of 64 bits whose output bits all depend on all input bits.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Gumbel noise of token `token` at output position `position`: a pure function of the key.
float gumbel(uint64_t key, uint64_t position, uint64_t token) {
  const uint64_t bits = mix(mix(key ^ mix(position)) ^ token);
  const double u = (static_cast<double>(bits >> 40) + 0.5) * 0x1p-24;
  return static_cast<float>(-std::log(-std::log(u)));
}

float log_sum_exp(std::span<const float> logits) {
  float peak = -std::numeric_limits<float>::infinity();
  for (float l : logits) peak = std::max(peak, l);
  double sum = 0;
  for (float l : logits) sum += std::exp(static_cast<double>(l - peak));
  return peak + static_cast<float>(std::log(sum));
}

/// Higher value first, then lower id.
bool better(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
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
  if (params.top_k > 0 && kept.size() > static_cast<size_t>(params.top_k)) {
    kept.resize(static_cast<size_t>(params.top_k));
  }
  if (params.top_p < 1.0F) {
    double mass = 0;
    for (const TokenLogprob& t : kept) mass += std::exp(static_cast<double>(t.logprob));
    const double wanted = mass * static_cast<double>(params.top_p);
    double sum = 0;
    size_t count = 0;
    while (count < kept.size() && (count == 0 || sum < wanted)) {
      sum += std::exp(static_cast<double>(kept[count].logprob));
      ++count;
    }
    kept.resize(count);
  }
  return kept;
}

/// A finished value must end, however few tokens it has.
bool leaves_only(const structured::TokenMask* allowed, std::span<const TokenId> stop_ids) {
  if (allowed == nullptr) return false;
  int64_t others = allowed->count();
  std::vector<TokenId> distinct(stop_ids.begin(), stop_ids.end());
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  for (const TokenId id : distinct) others -= allowed->allows(id) ? 1 : 0;
  return others == 0;
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
  if (output.size() < static_cast<size_t>(params.min_tokens) && !leaves_only(allowed, stop_ids)) {
    for (TokenId id : stop_ids) logits[static_cast<size_t>(id)] = -kInfinity;
  }
  for (const auto& [id, bias] : params.logit_bias) logits[static_cast<size_t>(id)] += bias;
  apply_penalties(logits, params, prompt, output);

  if (params.temperature < kGreedyBelow) {
    result.token = argmax(logits);
  } else {
    const float temperature = std::max(params.temperature, kLowestTemperature);
    for (float& l : logits) l /= temperature;
    const uint64_t key = mix(params.seed ^ mix(params.choice));
    float best = -kInfinity;
    const bool everything = params.top_p >= 1.0F && params.top_k <= 0 && params.min_p <= 0;
    const auto consider = [&](TokenId id, float value) {
      if (value == -kInfinity) return;
      const float noisy = value + gumbel(key, output.size(), static_cast<uint64_t>(id));
      if (noisy > best || (noisy == best && id < result.token)) {
        best = noisy;
        result.token = id;
      }
    };
    if (everything) {
      for (size_t i = 0; i < logits.size(); ++i) consider(static_cast<TokenId>(i), logits[i]);
    } else {
      for (const TokenLogprob& t : filter(logits, params)) consider(t.token, t.logprob);
    }
  }
  if (params.logprobs >= 0) {
    result.logprob =
        std::min(raw[static_cast<size_t>(result.token)], std::numeric_limits<float>::max()) -
        normaliser;
  }
  return result;
}

}  // namespace cedar::engine
