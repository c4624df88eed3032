#pragma once
// What sampling from whole rows (sampling.cpp) and from a device's candidates (candidate_sampling.cpp) have in
// common: both must give the same tokens.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/sampling.h"
#include "engine/structured/token_mask.h"
#include "kernels/draw_noise.h"

namespace cedar::engine {

inline bool is_greedy(const SamplingParams& params) { return params.temperature < 1e-5F; }
/// What logits are divided by.
inline float divisor(const SamplingParams& params) { return std::max(params.temperature, 0.01F); }
inline bool filters(const SamplingParams& params) {
  return params.top_p < 1.0F || params.top_k > 0 || params.min_p > 0;
}
inline uint64_t noise_key(const SamplingParams& params) {
  return kernels::mix_bits(params.seed ^ kernels::mix_bits(params.choice));
}

/// Higher value first, then lower id.
inline bool better(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
}

inline void keep_top_k(std::vector<TokenLogprob>& sorted, const SamplingParams& params) {
  if (params.top_k > 0 && sorted.size() > static_cast<size_t>(params.top_k)) {
    sorted.resize(static_cast<size_t>(params.top_k));
  }
}

/// The first tokens whose probabilities reach top_p of all of them; at least one.
inline void keep_top_p(std::vector<TokenLogprob>& sorted, float top_p) {
  double mass = 0;
  for (const TokenLogprob& t : sorted) mass += std::exp(static_cast<double>(t.logprob));
  const double wanted = mass * static_cast<double>(top_p);
  double sum = 0;
  size_t count = 0;
  while (count < sorted.size() && (count == 0 || sum < wanted)) {
    sum += std::exp(static_cast<double>(sorted[count].logprob));
    ++count;
  }
  sorted.resize(count);
}

/// The token with the greatest value plus Gumbel noise; 0 if no value is above minus infinity.
class NoisyBest {
 public:
  NoisyBest(const SamplingParams& params, size_t position)
      : key_(noise_key(params)), position_(position) {}

  float noisy(TokenId id, float value) const {
    const double u = kernels::draw_uniform(key_, position_, static_cast<uint64_t>(id));
    return value + static_cast<float>(-std::log(-std::log(u)));
  }
  void consider(TokenId id, float value) {
    if (value == -std::numeric_limits<float>::infinity()) return;
    const float candidate = noisy(id, value);
    if (candidate > best_ || (candidate == best_ && id < token_)) {
      best_ = candidate;
      token_ = id;
    }
  }
  TokenId token() const { return token_; }
  float best() const { return best_; }

 private:
  uint64_t key_, position_;
  float best_ = -std::numeric_limits<float>::infinity();
  TokenId token_ = 0;
};

/// A finished value must end, however few tokens it has.
inline bool leaves_only(const structured::TokenMask* allowed, std::span<const TokenId> stop_ids) {
  if (allowed == nullptr) return false;
  int64_t others = allowed->count();
  std::vector<TokenId> distinct(stop_ids.begin(), stop_ids.end());
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  for (const TokenId id : distinct) others -= allowed->allows(id) ? 1 : 0;
  return others == 0;
}
inline bool masks_stops(const SamplingParams& params, size_t output_tokens,
                        std::span<const TokenId> stop_ids, const structured::TokenMask* allowed) {
  return output_tokens < static_cast<size_t>(params.min_tokens) && !leaves_only(allowed, stop_ids);
}

}  // namespace cedar::engine
