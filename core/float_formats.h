#pragma once
// Bit-exact BF16, E4M3, E8M0 and E2M1 (spec/model.md section 2). Usable on host and device.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define CEDAR_HD __host__ __device__
#else
#define CEDAR_HD
#endif

namespace cedar {

CEDAR_HD inline uint32_t float_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}
CEDAR_HD inline float bits_float(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

/// bfloat16 storage. Arithmetic is done in float; only conversions live here.
struct Bf16 {
  uint16_t bits = 0;

  Bf16() = default;
  /// Round to nearest even. NaN stays a (quiet) NaN.
  CEDAR_HD explicit Bf16(float x) {
    uint32_t u = float_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((u >> 16) | 0x0040u);
    } else {
      u += 0x7fffu + ((u >> 16) & 1u);
      bits = static_cast<uint16_t>(u >> 16);
    }
  }
  CEDAR_HD explicit operator float() const { return bits_float(static_cast<uint32_t>(bits) << 16); }
  CEDAR_HD static Bf16 from_bits(uint16_t b) {
    Bf16 x;
    x.bits = b;
    return x;
  }
  friend bool operator==(Bf16 a, Bf16 b) { return a.bits == b.bits; }
};
static_assert(sizeof(Bf16) == 2);

/// The value of x after a round trip through bf16.
CEDAR_HD inline float round_to_bf16(float x) { return static_cast<float>(Bf16(x)); }

/// E4M3 "fn": 1-4-3, bias 7, largest 448, 0x7f and 0xff are NaN.
CEDAR_HD inline float e4m3_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t exponent = (code >> 3) & 0xfu;
  const uint32_t mantissa = code & 0x7u;
  if (exponent == 0xfu && mantissa == 0x7u) return bits_float(sign | 0x7fc00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0.001953125f;  // 2^-9
    return bits_float(float_bits(magnitude) | sign);
  }
  return bits_float(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

/// Round to nearest even, saturating to +-448. NaN gives NaN.
CEDAR_HD inline uint8_t float_to_e4m3(float x) {
  const uint32_t u = float_bits(x);
  const uint8_t sign = static_cast<uint8_t>((u >> 24) & 0x80u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // >= 448
  if (magnitude < 0x3c800000u) {  // below 2^-6: subnormal grid of 2^-9
    // Adding 2^14 makes the float's last place 2^-9, so the hardware rounds for us.
    const float shifted = bits_float(magnitude) + 16384.0f;
    return static_cast<uint8_t>(sign | (float_bits(shifted) - float_bits(16384.0f)));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return static_cast<uint8_t>(sign | (code > 0x7eu ? 0x7eu : code));
}

/// E8M0: 2^(b - 127); 255 is NaN. b = 0 is the float subnormal 2^-127.
CEDAR_HD inline float e8m0_to_float(uint8_t b) {
  if (b == 255) return bits_float(0x7fc00000u);
  if (b == 0) return bits_float(0x00400000u);
  return bits_float(static_cast<uint32_t>(b) << 23);
}

/// E2M1: bit 3 sign, bits 2..0 index {0, .5, 1, 1.5, 2, 3, 4, 6}.
CEDAR_HD inline float e2m1_to_float(uint8_t code) {
  const uint32_t index = code & 0x7u;
  const uint32_t sign = static_cast<uint32_t>(code & 0x8u) << 28;
  // 0 -> 0, 1 -> .5, otherwise 1.m * 2^(e - 1) with e = index >> 1.
  uint32_t magnitude = 0;
  if (index == 1) {
    magnitude = 0x3f000000u;
  } else if (index > 1) {
    magnitude = ((126u + (index >> 1)) << 23) | ((index & 1u) << 22);
  }
  return bits_float(sign | magnitude);
}

/// Round to nearest, ties to the even code, saturating to +-6, sign of zero kept.
CEDAR_HD inline uint8_t float_to_e2m1(float x) {
  const uint8_t sign = static_cast<uint8_t>((float_bits(x) >> 28) & 0x8u);
  const float a = bits_float(float_bits(x) & 0x7fffffffu);
  uint8_t code = 7;
  if (a <= 0.25f) code = 0;
  else if (a < 0.75f) code = 1;
  else if (a <= 1.25f) code = 2;
  else if (a < 1.75f) code = 3;
  else if (a <= 2.5f) code = 4;
  else if (a < 3.5f) code = 5;
  else if (a <= 5.0f) code = 6;
  return static_cast<uint8_t>(sign | code);
}

/// P2(a, c) of spec/model.md 2.2: ceil(log2(a * c)) on the bits, as an E8M0 byte.
/// REQUIRES: a * c is a positive normal float.
CEDAR_HD inline uint8_t power_of_two_scale(float amax, float reciprocal) {
  const uint32_t t = float_bits(amax * reciprocal);
  return static_cast<uint8_t>(((t >> 23) & 0xffu) + ((t & 0x7fffffu) != 0 ? 1u : 0u));
}

constexpr float kReciprocal448 = 1.0f / 448.0f;
constexpr float kReciprocal6 = 1.0f / 6.0f;

}  // namespace cedar
