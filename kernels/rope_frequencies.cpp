#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/rope.h"

namespace cedar::kernels {
namespace {

/// The pair index whose wavelength makes `rotations` turns over the original length.
double correction_index(double rotations, int64_t rotary_dim, double theta,
                        int64_t original_length) {
  const double turns = static_cast<double>(original_length) / (rotations * 2 * std::numbers::pi);
  return static_cast<double>(rotary_dim) * std::log(turns) / (2 * std::log(theta));
}

}  // namespace

std::vector<float> rope_inverse_frequencies(int64_t rotary_dim, double theta,
                                            const YarnScaling& yarn) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    const float power = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    frequencies.push_back(1.0f / power);
  }
  if (yarn.factor == 1 || yarn.original_length <= 0) return frequencies;

  const double last = static_cast<double>(rotary_dim - 1);
  const double low = std::max(
      std::floor(correction_index(yarn.beta_fast, rotary_dim, theta, yarn.original_length)), 0.0);
  double high = std::min(
      std::ceil(correction_index(yarn.beta_slow, rotary_dim, theta, yarn.original_length)), last);
  if (high == low) high += 0.001;
  const float width = static_cast<float>(high - low);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / width, 0.0f, 1.0f);
    const float plain = frequencies[i];
    frequencies[i] = plain / static_cast<float>(yarn.factor) * ramp + plain * (1.0f - ramp);
  }
  return frequencies;
}

void rope_table(int64_t position, const float* inv_freq, int64_t pairs, float* cos, float* sin) {
  for (int64_t i = 0; i < pairs; ++i) {
    const float angle = static_cast<float>(position) * inv_freq[i];
    const double wide = static_cast<double>(angle);
    cos[i] = static_cast<float>(std::cos(wide));
    sin[i] = static_cast<float>(std::sin(wide));
  }
}

}  // namespace cedar::kernels
