#pragma once
// Number formats and quantisers of spec/model.md section 2 by search and in double, sharing no code with core/ or
// kernels/: slow, and obviously the definition.

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace cedar::reference {

/// NaN codes are not asked for.
inline double e4m3_value(int code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 128) != 0 ? -magnitude : magnitude;
}
inline double e2m1_value(int code) {
  constexpr double kValues[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kValues[code & 7] : kValues[code & 7];
}
inline double e8m0_value(int code) { return std::ldexp(1.0, code - 127); }

/// The nearest code of 0 .. largest_code (magnitudes rise with the code); a tie goes to the even code; beyond
/// the largest saturates; the sign of x, zero included, becomes `sign_bit`.
template <class Value>
int nearest_code(double x, int largest_code, int sign_bit, const Value& value) {
  const double magnitude = std::fmin(std::fabs(x), value(largest_code));
  int best = 0;
  for (int code = 1; code <= largest_code; ++code) {
    const double closer = std::fabs(value(code) - magnitude),
                 known = std::fabs(value(best) - magnitude);
    if (closer < known || (closer == known && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(x) ? sign_bit : 0);
}
inline int to_e4m3(double x) { return nearest_code(x, 0x7e, 0x80, e4m3_value); }
inline int to_e2m1(double x) { return nearest_code(x, 7, 8, e2m1_value); }

/// P2(a, c): the smallest power of two that is not below f32(a * c), as E8M0.
inline int power_of_two_scale(float amax, float c) {
  const double t =
      static_cast<double>(static_cast<float>(static_cast<double>(amax) * static_cast<double>(c)));
  int code = 0;
  while (e8m0_value(code) < t) ++code;
  return code;
}

enum class Rule { q8, q4x, q4n };

struct QuantizedRow {
  std::vector<int> codes;   // one an element
  std::vector<int> scales;  // one a group
  std::vector<double> values;
};

inline QuantizedRow quantize(Rule rule, std::span<const float> x) {
  const size_t group = rule == Rule::q4n ? 16 : 32;
  QuantizedRow row;
  for (size_t begin = 0; begin < x.size(); begin += group) {
    double amax = 0;
    for (size_t i = begin; i < begin + group; ++i)
      amax = std::fmax(amax, std::fabs(static_cast<double>(x[i])));
    double scale = 0;
    if (rule == Rule::q8) {
      amax = std::fmax(amax, static_cast<double>(1e-4f));
      row.scales.push_back(power_of_two_scale(static_cast<float>(amax), 1.0f / 448.0f));
      scale = e8m0_value(row.scales.back());
    } else if (rule == Rule::q4x) {
      amax = std::fmax(amax, std::ldexp(6.0, -126));
      row.scales.push_back(power_of_two_scale(static_cast<float>(amax), 1.0f / 6.0f));
      scale = e8m0_value(row.scales.back());
    } else {
      amax = std::fmax(amax, std::ldexp(6.0, -9));
      row.scales.push_back(to_e4m3(static_cast<double>(static_cast<float>(amax / 6.0))));
      scale = e4m3_value(row.scales.back());
    }
    for (size_t i = begin; i < begin + group; ++i) {
      const double scaled =
          static_cast<double>(static_cast<float>(static_cast<double>(x[i]) / scale));
      row.codes.push_back(rule == Rule::q8 ? to_e4m3(scaled) : to_e2m1(scaled));
      row.values.push_back(
          scale * (rule == Rule::q8 ? e4m3_value(row.codes.back()) : e2m1_value(row.codes.back())));
    }
  }
  return row;
}

}  // namespace cedar::reference
