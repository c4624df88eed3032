#pragma once
// The row-wise operations written from the formulas of spec/model.md, in double, slow and plain.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/float_formats.h"

namespace cedar::test {

using Row = std::vector<double>;

inline double round_bf16(double x) {
  return static_cast<double>(round_to_bf16(static_cast<float>(x)));
}

inline double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Section 3, before the final rounding.
inline Row rms_norm_reference(const Row& x, const Row& weight, double eps) {
  const double factor = 1.0 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + eps);
  Row y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = weight[i] * x[i] * factor;
  return y;
}

/// Section 4 on the last 2 * inv_freq.size() columns, before the final rounding.
inline Row rotate_reference(Row x, int64_t position, const std::vector<float>& inv_freq,
                            bool inverse) {
  const size_t first = x.size() - 2 * inv_freq.size();
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const float angle = static_cast<float>(position) * inv_freq[i];
    const double c = std::cos(static_cast<double>(angle));
    const double s = (inverse ? -1 : 1) * std::sin(static_cast<double>(angle));
    const double a = x[first + 2 * i], b = x[first + 2 * i + 1];
    x[first + 2 * i] = a * c - b * s;
    x[first + 2 * i + 1] = a * s + b * c;
  }
  return x;
}

/// Section 7.8 for one head: blocks of 64, probabilities rounded to bf16 before the product with v.
inline Row attend_reference(const Row& q, const std::vector<Row>& keys,
                            const std::vector<Row>& values, double scale, double sink) {
  Row o(q.size(), 0.0);
  if (keys.empty()) return o;
  double largest = -1e30, total = 0;
  for (size_t begin = 0; begin < keys.size(); begin += 64) {
    const size_t end = std::min(begin + 64, keys.size());
    Row s;
    for (size_t i = begin; i < end; ++i) s.push_back(dot(q, keys[i]) * scale);
    const double before = largest;
    for (const double x : s) largest = std::max(largest, x);
    const double alpha = std::exp(before - largest);
    total *= alpha;
    for (double& x : o) x *= alpha;
    for (size_t i = begin; i < end; ++i) {
      const double p = std::exp(s[i - begin] - largest);
      total += p;
      for (size_t c = 0; c < o.size(); ++c) o[c] += round_bf16(p) * values[i][c];
    }
  }
  total += std::exp(sink - largest);
  for (double& x : o) x /= total;
  return o;
}

/// Section 7.6. `round` follows the release's bf16 roundings.
inline double index_score_reference(const std::vector<Row>& q, const Row& weights, const Row& key,
                                    bool round) {
  double sum = 0;
  for (size_t h = 0; h < q.size(); ++h) {
    double d = dot(q[h], key);
    if (round) d = round_bf16(d);
    const double product = std::max(d, 0.0) * weights[h];
    sum += round ? round_bf16(product) : product;
  }
  return round ? round_bf16(sum) : sum;
}

/// The k best columns by (score descending, column ascending), -inf excluded; ascending, padded
/// with -1.
inline std::vector<int32_t> topk_reference(const std::vector<float>& scores, int64_t k,
                                           const std::vector<bool>& allowed = {}) {
  std::vector<int32_t> order;
  for (size_t c = 0; c < scores.size(); ++c) {
    const bool seen = scores[c] > -std::numeric_limits<float>::infinity();
    if (seen && (allowed.empty() || allowed[c])) order.push_back(static_cast<int32_t>(c));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  if (static_cast<int64_t>(order.size()) > k) order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  order.resize(static_cast<size_t>(k), -1);
  return order;
}

/// Section 7.7: which of `scores` belong to the pool.
inline std::vector<bool> candidates_reference(const std::vector<float>& scores, int64_t visible,
                                              int64_t block, int64_t keep) {
  std::vector<bool> pool(scores.size(), false);
  if (visible == 0) return pool;
  std::vector<float> best;
  for (size_t begin = 0; begin < scores.size(); begin += static_cast<size_t>(block)) {
    const size_t end = std::min(begin + static_cast<size_t>(block), scores.size());
    best.push_back(*std::max_element(scores.begin() + static_cast<int64_t>(begin),
                                     scores.begin() + static_cast<int64_t>(end)));
  }
  best[static_cast<size_t>((visible - 1) / block)] = std::numeric_limits<float>::infinity();
  for (const int32_t b : topk_reference(best, keep)) {
    if (b < 0) continue;
    for (int64_t c = b * block;
         c < std::min<int64_t>((b + 1) * block, static_cast<int64_t>(scores.size())); ++c) {
      pool[static_cast<size_t>(c)] = true;
    }
  }
  return pool;
}

struct HcSplit {
  Row pre, post, mix;
};
/// Section 6 from m = (fn z) rho.
inline HcSplit hc_split_reference(const Row& m, const Row& base, const Row& scale, size_t n,
                                  double eps, int iterations) {
  HcSplit out{Row(n), Row(n), Row(n * n)};
  for (size_t j = 0; j < n; ++j) {
    out.pre[j] = 1 / (1 + std::exp(-(m[j] * scale[0] + base[j]))) + eps;
    out.post[j] = 2 / (1 + std::exp(-(m[n + j] * scale[1] + base[n + j])));
  }
  Row& b = out.mix;
  for (size_t i = 0; i < n * n; ++i) b[i] = m[2 * n + i] * scale[2] + base[2 * n + i];
  const auto rows = [&](double inside, double outside) {
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (size_t k = 0; k < n; ++k) sum += b[j * n + k];
      for (size_t k = 0; k < n; ++k) b[j * n + k] = b[j * n + k] / (sum + inside) + outside;
    }
  };
  const auto columns = [&] {
    for (size_t k = 0; k < n; ++k) {
      double sum = 0;
      for (size_t j = 0; j < n; ++j) sum += b[j * n + k];
      for (size_t j = 0; j < n; ++j) b[j * n + k] /= sum + eps;
    }
  };
  for (size_t j = 0; j < n; ++j) {
    const double largest = *std::max_element(b.begin() + static_cast<int64_t>(j * n),
                                             b.begin() + static_cast<int64_t>((j + 1) * n));
    for (size_t k = 0; k < n; ++k) b[j * n + k] = std::exp(b[j * n + k] - largest);
  }
  rows(0, eps);
  columns();
  for (int i = 1; i < iterations; ++i) {
    rows(eps, 0);
    columns();
  }
  return out;
}

/// Section 9.4 for one copy: the gate.
inline double engram_gate_reference(const Row& x, const Row& key, const Row& q_weight,
                                    const Row& k_weight, double eps) {
  const double d = static_cast<double>(x.size());
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * q_weight[i] * k_weight[i] * key[i];
  const double rho = 1 / std::sqrt(dot(x, x) / d + eps) / std::sqrt(dot(key, key) / d + eps);
  const double g = sum * rho / std::sqrt(d);
  return 1 / (1 + std::exp(-std::copysign(std::sqrt(std::max(std::abs(g), 1e-6)), g)));
}

}  // namespace cedar::test
