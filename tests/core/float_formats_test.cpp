#include "core/float_formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace cedar {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

// ---- Oracles: the definitions of the formats in double precision, sharing no code with core. ----

/// Value of a sign-exponent-mantissa code by the textbook formula (no infinities).
double minifloat(unsigned code, int exponent_bits, int mantissa_bits, int bias) {
  const unsigned mantissa = code & ((1U << mantissa_bits) - 1);
  const unsigned exponent = (code >> mantissa_bits) & ((1U << exponent_bits) - 1);
  const double sign = ((code >> (mantissa_bits + exponent_bits)) & 1U) != 0 ? -1.0 : 1.0;
  const double fraction = mantissa / std::ldexp(1.0, mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1.0 + fraction, static_cast<int>(exponent) - bias);
}

/// Nearest code to |x| by search over the non-negative codes [0, count); ties go to the even code.
/// Far beyond the largest code all distances look alike in double, so the search stops caring there.
unsigned nearest_code(double magnitude, unsigned count, int exponent_bits, int mantissa_bits,
                      int bias) {
  magnitude = std::min(magnitude, 1e6);
  unsigned best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (unsigned code = 0; code < count; ++code) {
    const double distance =
        std::abs(minifloat(code, exponent_bits, mantissa_bits, bias) - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return best;
}

uint8_t e4m3_oracle(float x) {
  const unsigned sign = std::signbit(x) ? 0x80U : 0U;
  return static_cast<uint8_t>(sign | nearest_code(std::abs(static_cast<double>(x)), 0x7f, 4, 3, 7));
}

uint8_t e2m1_oracle(float x) {
  const unsigned sign = std::signbit(x) ? 0x8U : 0U;
  return static_cast<uint8_t>(sign | nearest_code(std::abs(static_cast<double>(x)), 8, 2, 1, 1));
}

/// The floats where a rounding decision can change: each code's value, each midpoint, and the floats
/// directly beside them.
std::vector<float> decision_points(unsigned count, int exponent_bits, int mantissa_bits, int bias) {
  std::vector<float> points;
  for (unsigned code = 0; code < count; ++code) {
    const double value = minifloat(code, exponent_bits, mantissa_bits, bias);
    std::array<double, 2> around = {value, value};
    if (code + 1 < count) {
      around[1] = (value + minifloat(code + 1, exponent_bits, mantissa_bits, bias)) / 2;
    }
    for (double v : around) {
      const auto f = static_cast<float>(v);
      for (float p : {f, std::nextafter(f, kInfinity), std::nextafter(f, -kInfinity)}) {
        points.push_back(p);
        points.push_back(-p);
      }
    }
  }
  return points;
}

// ------------------------------------------------------------------------------------------------

TEST(Bf16, All65536CodesRoundTrip) {
  for (uint32_t code = 0; code <= 0xffff; ++code) {
    const Bf16 x = Bf16::from_bits(static_cast<uint16_t>(code));
    const auto wide = static_cast<float>(x);
    ASSERT_EQ(float_bits(wide), code << 16);
    const bool nan = (code & 0x7fffU) > 0x7f80U;
    // A signalling NaN comes back quiet; everything else bit for bit.
    ASSERT_EQ(Bf16(wide).bits, nan ? (code | 0x0040U) : code) << std::hex << code;
  }
}

TEST(Bf16, RoundsToNearestEven) {
  for (uint32_t code = 0; code < 0x7f7f; ++code) {  // finite, with a finite successor
    const uint32_t low = code << 16;
    const auto down = static_cast<uint16_t>(code);
    const auto up = static_cast<uint16_t>(code + 1);
    ASSERT_EQ(Bf16(bits_float(low | 0x7fffU)).bits, down);
    ASSERT_EQ(Bf16(bits_float(low | 0x8000U)).bits, code % 2 == 0 ? down : up);
    ASSERT_EQ(Bf16(bits_float(low | 0x8001U)).bits, up);
    ASSERT_EQ(Bf16(bits_float(low | 0x80008000U)).bits, 0x8000U | (code % 2 == 0 ? down : up));
  }
}

TEST(Bf16, OverflowsToInfinityAndKeepsNan) {
  EXPECT_EQ(Bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(Bf16(bits_float(0x7f7f7fffU)).bits, 0x7f7f) << "just below the tie to infinity";
  EXPECT_EQ(Bf16(kInfinity).bits, 0x7f80);
  EXPECT_EQ(Bf16(-kInfinity).bits, 0xff80);
  // NaN whose payload lies wholly in the bits that are cut off must not turn into infinity.
  EXPECT_TRUE(std::isnan(round_to_bf16(bits_float(0x7f800001U))));
  EXPECT_TRUE(std::isnan(round_to_bf16(bits_float(0xffffffffU))));
  EXPECT_EQ(Bf16(-0.0F).bits, 0x8000);
}

TEST(E4m3, All256CodesDecodeByTheFormula) {
  for (unsigned code = 0; code < 256; ++code) {
    const float x = e4m3_to_float(static_cast<uint8_t>(code));
    if ((code & 0x7fU) == 0x7fU) {
      EXPECT_TRUE(std::isnan(x)) << code;
      continue;
    }
    EXPECT_EQ(static_cast<double>(x), minifloat(code, 4, 3, 7)) << code;
    EXPECT_EQ(std::signbit(x), code >= 0x80U) << code;
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0F);
  EXPECT_EQ(e4m3_to_float(0x08), 0.015625F);     // 2^-6, smallest normal
  EXPECT_EQ(e4m3_to_float(0x01), 0.001953125F);  // 2^-9, smallest subnormal
}

TEST(E4m3, All256CodesRoundTrip) {
  for (unsigned code = 0; code < 256; ++code) {
    EXPECT_EQ(float_to_e4m3(e4m3_to_float(static_cast<uint8_t>(code))), code);
  }
}

TEST(E4m3, RoundsLikeTheDefinitionAtEveryDecisionPoint) {
  for (float x : decision_points(0x7f, 4, 3, 7)) {
    ASSERT_EQ(float_to_e4m3(x), e4m3_oracle(x)) << std::hexfloat << x;
  }
}

TEST(E4m3, RoundsLikeTheDefinitionOnEveryBf16) {
  for (uint32_t code = 0; code <= 0xffff; ++code) {
    const float x = bits_float(code << 16);
    if (std::isnan(x)) continue;
    ASSERT_EQ(float_to_e4m3(x), e4m3_oracle(std::isinf(x) ? std::copysign(1e30F, x) : x))
        << std::hexfloat << x;
  }
}

TEST(E4m3, SaturatesAndKeepsNan) {
  EXPECT_EQ(float_to_e4m3(448.0F), 0x7e);
  EXPECT_EQ(float_to_e4m3(464.0F), 0x7e) << "where an unsaturated format would go to NaN";
  EXPECT_EQ(float_to_e4m3(1e30F), 0x7e);
  EXPECT_EQ(float_to_e4m3(-1e30F), 0xfe);
  EXPECT_EQ(float_to_e4m3(kInfinity), 0x7e);
  EXPECT_EQ(float_to_e4m3(-kInfinity), 0xfe);
  EXPECT_EQ(float_to_e4m3(kNan) & 0x7f, 0x7f);
  EXPECT_EQ(float_to_e4m3(-0.0F), 0x80);
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::denorm_min()), 0x00);
}

TEST(E8m0, All256CodesArePowersOfTwo) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(static_cast<double>(e8m0_to_float(static_cast<uint8_t>(code))),
              std::ldexp(1.0, code - 127))
        << code;
  }
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(E2m1, All16CodesDecodeAndRoundTrip) {
  const float values[8] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  for (unsigned code = 0; code < 16; ++code) {
    const float x = e2m1_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(std::abs(x), values[code & 7U]) << code;
    EXPECT_EQ(std::signbit(x), code >= 8) << code;
    EXPECT_EQ(float_to_e2m1(x), code);
  }
  EXPECT_EQ(e2m1_to_float(0xf3), 1.5F) << "the other nibble of the byte is ignored";
  EXPECT_EQ(e2m1_to_float(0x0b), -1.5F);
}

TEST(E2m1, TiesGoToTheEvenCode) {
  const struct {
    float tie, result;
  } cases[] = {{0.25F, 0.0F}, {0.75F, 1.0F}, {1.25F, 1.0F}, {1.75F, 2.0F},
               {2.5F, 2.0F},  {3.5F, 4.0F},  {5.0F, 4.0F}};
  for (const auto& c : cases) {
    EXPECT_EQ(e2m1_to_float(float_to_e2m1(c.tie)), c.result) << c.tie;
    EXPECT_EQ(e2m1_to_float(float_to_e2m1(-c.tie)), -c.result) << -c.tie;
    EXPECT_EQ(float_to_e2m1(c.tie) % 2, 0) << c.tie;
  }
}

TEST(E2m1, RoundsLikeTheDefinition) {
  for (float x : decision_points(8, 2, 1, 1)) {
    ASSERT_EQ(float_to_e2m1(x), e2m1_oracle(x)) << std::hexfloat << x;
  }
  for (uint32_t code = 0; code <= 0xffff; ++code) {
    const float x = bits_float(code << 16);
    if (!std::isfinite(x)) continue;
    ASSERT_EQ(float_to_e2m1(x), e2m1_oracle(x)) << std::hexfloat << x;
  }
}

TEST(E2m1, SaturatesAndKeepsTheSignOfZero) {
  EXPECT_EQ(float_to_e2m1(7.0F), 7);
  EXPECT_EQ(float_to_e2m1(kInfinity), 7);
  EXPECT_EQ(float_to_e2m1(-kInfinity), 15);
  EXPECT_EQ(float_to_e2m1(0.0F), 0);
  EXPECT_EQ(float_to_e2m1(-0.0F), 8);
  EXPECT_EQ(float_to_e2m1(-0.1F), 8) << "rounds to minus zero, not plus zero";
}

// spec/model.md section 15.
TEST(PowerOfTwoScale, SpecificationVectors) {
  struct Vector {
    float amax;
    int exponent;
  };
  const Vector q8[] = {{1e-4F, -22}, {0.5F, -9},  {1.0F, -8},  {3.5F, -7},  {7.0F, -6},
                       {14.0F, -5},  {447.0F, 0}, {448.0F, 0}, {449.0F, 1}, {512.0F, 1}};
  for (const Vector& v : q8) {
    EXPECT_EQ(power_of_two_scale(v.amax, kReciprocal448), v.exponent + 127) << v.amax;
  }
  const float floor_q4x = std::ldexp(6.0F, -126);  // what an all-zero group is raised to
  const Vector q4x[] = {{floor_q4x, -126}, {0.75F, -3}, {1.5F, -2}, {3.0F, -1},
                        {6.0F, 0},         {6.5F, 1},   {12.0F, 1}, {13.0F, 2}};
  for (const Vector& v : q4x) {
    EXPECT_EQ(power_of_two_scale(v.amax, kReciprocal6), v.exponent + 127) << v.amax;
  }
}

TEST(PowerOfTwoScale, IsTheCeilingOfTheLogarithm) {
  std::mt19937 rng(3);
  std::uniform_real_distribution<float> log_amax(-13.0F, 15.0F);
  for (int i = 0; i < 20'000; ++i) {
    const float amax = std::exp2(log_amax(rng));
    for (float reciprocal : {kReciprocal448, kReciprocal6}) {
      int exponent = 0;
      // frexp gives t = f * 2^e with f in [0.5, 1); an exact power of two has f == 0.5.
      const double f = std::frexp(static_cast<double>(amax * reciprocal), &exponent);
      ASSERT_EQ(power_of_two_scale(amax, reciprocal), (f == 0.5 ? exponent - 1 : exponent) + 127)
          << std::hexfloat << amax;
    }
  }
}

TEST(Reciprocals, AreTheNearestFloats) {
  EXPECT_EQ(kReciprocal448, static_cast<float>(1.0 / 448.0));
  EXPECT_EQ(kReciprocal6, static_cast<float>(1.0 / 6.0));
}

// Bytes of released weights, spec/model.md section 15: they pin sign, nibble order and scale together.
TEST(ReleasedBytes, Fp8RowDecodes) {
  const uint8_t codes[] = {0xd8, 0x71, 0xf2, 0x79, 0x70, 0x69, 0xf0, 0xe5};
  const float expected[] = {-.00390625F, .03515625F,  -.0390625F, .0703125F,
                            .03125F,     .017578125F, -.03125F,   -.0126953125F};
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(e4m3_to_float(codes[i]) * e8m0_to_float(0x73), expected[i]) << i;
  }
}

TEST(ReleasedBytes, Fp4RowDecodesLowNibbleFirst) {
  const uint8_t bytes[] = {0xa0, 0xa8, 0xec, 0x4a, 0xad, 0xaf, 0x42, 0xaa};
  const float expected[] = {0.0F,       -.0078125F, -0.0F,      -.0078125F, -.015625F, -.03125F,
                            -.0078125F, .015625F,   -.0234375F, -.0078125F, -.046875F, -.0078125F,
                            .0078125F,  .015625F,   -.0078125F, -.0078125F};
  const float scale = e8m0_to_float(0x78);
  for (size_t i = 0; i < 16; ++i) {
    const auto code = static_cast<uint8_t>(i % 2 == 0 ? bytes[i / 2] & 0xf : bytes[i / 2] >> 4);
    EXPECT_EQ(float_bits(e2m1_to_float(code) * scale), float_bits(expected[i])) << i;
  }
}

}  // namespace
}  // namespace cedar
