#pragma once
// Linear layers and mixture of experts in double, from the formulas of spec/model.md 2.4 and 8.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "core/float_formats.h"
#include "kernels/weights.h"
#include "tests/reference/quantize_reference.h"

namespace cedar::reference {

/// Element [n, k] of the weight.
inline double weight_value(const kernels::WeightView& w, int64_t n, int64_t k) {
  using kernels::WeightFormat;
  const int64_t at = n * w.in + k;
  switch (w.format) {
    case WeightFormat::bf16:
      return static_cast<double>(static_cast<float>(static_cast<const Bf16*>(w.data)[at]));
    case WeightFormat::f32: return static_cast<double>(static_cast<const float*>(w.data)[at]);
    case WeightFormat::fp8_block32:
      return e4m3_value(static_cast<const uint8_t*>(w.data)[at]) *
             e8m0_value(w.scales[n / 32 * (w.in / 32) + k / 32]);
    case WeightFormat::fp4_group32: {
      const int byte = static_cast<const uint8_t*>(w.data)[at / 2];
      const int code = k % 2 == 0 ? byte & 15 : byte >> 4;
      return e2m1_value(code) * e8m0_value(w.scales[n * (w.in / 32) + k / 32]);
    }
  }
  return 0;
}

inline std::vector<double> weight_values(const kernels::WeightView& w) {
  std::vector<double> values;
  for (int64_t n = 0; n < w.out; ++n) {
    for (int64_t k = 0; k < w.in; ++k) values.push_back(weight_value(w, n, k));
  }
  return values;
}

/// What a linear multiplies: x itself, or its Q8 round trip for FP8 and FP4 weights.
inline std::vector<double> linear_input(kernels::WeightFormat format, std::span<const Bf16> x) {
  std::vector<float> wide;
  for (const Bf16 value : x) wide.push_back(static_cast<float>(value));
  if (format == kernels::WeightFormat::fp8_block32 ||
      format == kernels::WeightFormat::fp4_group32) {
    return quantize(Rule::q8, wide).values;
  }
  return {wide.begin(), wide.end()};
}

/// x [rows, in] -> [rows, out], unrounded.
inline std::vector<double> linear(const kernels::WeightView& w, std::span<const Bf16> x) {
  const std::vector<double> weight = weight_values(w);
  std::vector<double> y;
  const auto in = static_cast<size_t>(w.in);
  for (size_t row = 0; row < x.size() / in; ++row) {
    const std::vector<double> input = linear_input(w.format, x.subspan(row * in, in));
    for (size_t n = 0; n < static_cast<size_t>(w.out); ++n) {
      double sum = 0;
      for (size_t k = 0; k < in; ++k) sum += input[k] * weight[n * in + k];
      y.push_back(sum);
    }
  }
  return y;
}

inline std::vector<Bf16> rounded(std::span<const double> x) {
  std::vector<Bf16> y;
  for (const double value : x) y.push_back(Bf16(static_cast<float>(value)));
  return y;
}

struct Routing {
  std::vector<int32_t> experts;  // [top], in order of selection score
  std::vector<double> weights;
};

/// One row of the router, from its gate outputs.
inline Routing route(std::span<const double> gate, std::span<const float> bias, int64_t top,
                     double scale) {
  std::vector<double> score;
  std::vector<int32_t> order;
  for (const double v : gate) {
    order.push_back(static_cast<int32_t>(score.size()));
    score.push_back(std::sqrt(v > 20 ? v : std::log1p(std::exp(v))));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const auto i = static_cast<size_t>(a), j = static_cast<size_t>(b);
    return score[i] + static_cast<double>(bias[i]) > score[j] + static_cast<double>(bias[j]);
  });
  Routing routing;
  double sum = 1e-20;
  for (int64_t i = 0; i < top; ++i) {
    routing.experts.push_back(order[static_cast<size_t>(i)]);
    sum += score[static_cast<size_t>(routing.experts.back())];
  }
  for (const int32_t e : routing.experts) {
    routing.weights.push_back(score[static_cast<size_t>(e)] / sum * scale);
  }
  return routing;
}

struct ExpertViews {
  kernels::WeightView w1, w3, w2;
};

/// One expert on one row: w2(bf16(silu(g) * u * weight)), rounded to bf16.
inline std::vector<Bf16> expert(const ExpertViews& e, std::span<const Bf16> x, double weight,
                                double clamp) {
  const std::vector<Bf16> gate = rounded(linear(e.w1, x)), up = rounded(linear(e.w3, x));
  std::vector<Bf16> hidden;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = std::min(static_cast<double>(static_cast<float>(gate[i])), clamp);
    const double u = std::clamp(static_cast<double>(static_cast<float>(up[i])), -clamp, clamp);
    hidden.push_back(Bf16(static_cast<float>(g / (1 + std::exp(-g)) * u * weight)));
  }
  return rounded(linear(e.w2, hidden));
}

}  // namespace cedar::reference
