#include "kernels/logit_candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/attention_ops.h"
#include "kernels/draw_noise.h"

namespace cedar::kernels::cpu {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Tokens of the k highest keys above minus infinity, increasing.
std::vector<int32_t> best(const std::vector<float>& keys, int64_t k) {
  std::vector<int32_t> tokens(keys.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    const float x = keys[static_cast<size_t>(a)], y = keys[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(tokens.begin(), tokens.begin() + k, tokens.end(), before);
  tokens.resize(static_cast<size_t>(k));
  std::erase_if(tokens, [&](int32_t t) { return keys[static_cast<size_t>(t)] == kNever; });
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

double sum_of_exp(const std::vector<float>& values, float from, float least) {
  double sum = 0;
  for (const float v : values) {
    if (v >= least) sum += std::exp(static_cast<double>(v - from));
  }
  return sum;
}

void candidates_of_row(const LogitCandidatesParams& p, int64_t row) {
  const DrawRow& draw = p.draws[row];
  DrawStats& stats = p.stats[row];
  stats = {};
  const float* logits = p.logits + row * p.columns;
  std::vector<float> raw(logits, logits + p.columns);
  for (float& l : raw) {
    if (std::isnan(l)) {
      stats.nan = 1;
      return;
    }
    l = std::min(l, std::numeric_limits<float>::max());
  }
  std::vector<float> values = raw;
  if (draw.mask >= 0) {
    const uint32_t* mask = p.masks + draw.mask * p.mask_stride;
    for (int64_t c = 0; c < p.columns; ++c) {
      if ((mask[c / 32] >> (c % 32) & 1u) == 0) values[static_cast<size_t>(c)] = kNever;
    }
  }
  for (int64_t i = 0; i < draw.edits; ++i) {
    const LogitEdit& edit = p.edits[draw.first_edit + i];
    float& l = values[static_cast<size_t>(edit.token)];
    if ((edit.rules & LogitEdit::kNever) != 0) l = kNever;
    l += edit.bias;
    if ((edit.rules & LogitEdit::kSeen) != 0) l = l > 0 ? l / draw.repetition : l * draw.repetition;
    if ((edit.rules & LogitEdit::kCounted) != 0) {
      l -= draw.frequency * static_cast<float>(edit.count) + draw.presence;
    }
  }
  for (float& l : values) l /= draw.temperature;

  std::vector<float> keys = values;
  if (draw.kind == DrawKind::noisy) {
    for (size_t c = 0; c < keys.size(); ++c) {
      const double u = draw_uniform(draw.key, draw.position, c);
      keys[c] += static_cast<float>(-std::log(-std::log(u)));
    }
  }
  stats.peak = *std::max_element(values.begin(), values.end());
  if (draw.kind == DrawKind::ranked && stats.peak > kNever) {
    stats.sum = sum_of_exp(values, stats.peak, kNever);
    stats.total = stats.peak + static_cast<float>(std::log(stats.sum));
    stats.mass = sum_of_exp(values, stats.total, stats.peak + draw.floor);
  }
  const auto write = [&](const std::vector<int32_t>& tokens, const std::vector<float>& from,
                         LogitCandidate* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      to[i] = {};
      if (i >= static_cast<int64_t>(tokens.size())) continue;
      const int32_t token = tokens[static_cast<size_t>(i)];
      to[i] = {token, from[static_cast<size_t>(token)], raw[static_cast<size_t>(token)]};
    }
  };
  write(best(keys, p.k), values, p.candidates + row * p.k, p.k);
  if (p.raw_k == 0) return;
  stats.raw_peak = *std::max_element(raw.begin(), raw.end());
  if (stats.raw_peak > kNever) stats.raw_sum = sum_of_exp(raw, stats.raw_peak, kNever);
  write(best(raw, p.raw_k), raw, p.raw_best + row * p.raw_k, p.raw_k);
}

}  // namespace

Status logit_candidates(KernelContext& ctx, const LogitCandidatesParams& p) {
  ctx.pool->parallel_for(p.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) candidates_of_row(p, row);
  });
  return {};
}

}  // namespace cedar::kernels::cpu
