// The three formats one row at a time, in the words of spec/model.md 2.3: what the fast paths must equal.

#include <algorithm>
#include <cmath>

#include "kernels/quantize.h"

namespace cedar::kernels {
namespace {

constexpr float kFloorQ8 = 1e-4f;
constexpr float kFloorQ4x = 0x1.8p-124f;  // 6 * 2^-126
constexpr float kFloorQ4n = 0x1.8p-7f;    // 6 * 2^-9

int64_t group_size(RowFormat format) {
  switch (format) {
    case RowFormat::q8: return kQ8Group;
    case RowFormat::q4x: return kQ4xGroup;
    case RowFormat::q4n: return kQ4nGroup;
  }
  return kQ8Group;
}

/// Infinity and NaN in the group count as infinity, and make the group's scale NaN.
uint8_t scale_code(RowFormat format, float amax) {
  if (!std::isfinite(amax)) return format == RowFormat::q4n ? 0x7f : 255;
  switch (format) {
    case RowFormat::q8: return power_of_two_scale(std::max(amax, kFloorQ8), kReciprocal448);
    case RowFormat::q4x: return power_of_two_scale(std::max(amax, kFloorQ4x), kReciprocal6);
    case RowFormat::q4n: return float_to_e4m3(std::max(amax, kFloorQ4n) / 6.0f);
  }
  return 0;
}

float scale_value(RowFormat format, uint8_t code) {
  return format == RowFormat::q4n ? e4m3_to_float(code) : e8m0_to_float(code);
}

}  // namespace

void quantize_row(RowFormat format, const Bf16* x, int64_t columns, uint8_t* packed) {
  const int64_t group = group_size(format);
  const int64_t code_bytes = format == RowFormat::q8 ? columns : columns / 2;
  uint8_t* scales = packed + code_bytes;
  for (int64_t begin = 0; begin < columns; begin += group) {
    float amax = 0;
    for (int64_t i = begin; i < begin + group; ++i) {
      const float magnitude = std::fabs(static_cast<float>(x[i]));
      amax = std::isnan(magnitude) ? HUGE_VALF : std::max(amax, magnitude);
    }
    const uint8_t code = scale_code(format, amax);
    scales[begin / group] = code;
    const float scale = scale_value(format, code);
    if (format == RowFormat::q8) {
      for (int64_t i = begin; i < begin + group; ++i) {
        packed[i] = float_to_e4m3(static_cast<float>(x[i]) / scale);
      }
    } else {
      for (int64_t i = begin; i < begin + group; i += 2) {
        const uint8_t low = float_to_e2m1(static_cast<float>(x[i]) / scale);
        const uint8_t high = float_to_e2m1(static_cast<float>(x[i + 1]) / scale);
        packed[i / 2] = static_cast<uint8_t>(low | (high << 4));
      }
    }
  }
}

void dequantize_row(RowFormat format, const uint8_t* packed, int64_t columns, Bf16* x) {
  const int64_t group = group_size(format);
  const int64_t code_bytes = format == RowFormat::q8 ? columns : columns / 2;
  const uint8_t* scales = packed + code_bytes;
  for (int64_t i = 0; i < columns; ++i) {
    const float scale = scale_value(format, scales[i / group]);
    const float value = format == RowFormat::q8
                            ? e4m3_to_float(packed[i])
                            : e2m1_to_float((packed[i / 2] >> (4 * (i % 2))) & 15);
    x[i] = Bf16(value * scale);
  }
}

}  // namespace cedar::kernels
