// Included by row_kernels_<isa>.cpp after simd.h: e^x, dequantisation, normalisation, rotation and
// the small element-wise loops.

namespace cedar::kernels::cpu::CEDAR_ISA {

CEDAR_INLINE F32x16 exp(F32x16 x) {
  using namespace exp_constants;
  const F32x16 lowest = set1(kLowest);
  const F32x16 clamped = max(min(x, set1(kHighest)), lowest);
  const F32x16 shifted = clamped * set1(kLog2e) + set1(kRound);
  const F32x16 n = shifted - set1(kRound);
  F32x16 r = clamped - n * set1(kLn2High);
  r = r - n * set1(kLn2Low);
  F32x16 p = set1(kC7);
  p = p * r + set1(kC6);
  p = p * r + set1(kC5);
  p = p * r + set1(kC4);
  p = p * r + set1(kC3);
  p = p * r + set1(kC2);
  p = (p * (r * r) + r) + set1(1.0f);
  const U32x16 integer = bits(shifted) - bits(set1(kRound));
  const U32x16 half = shift_right_signed<1>(integer);
  const U32x16 bias = set1_u32(127);
  const F32x16 first = from_bits(shift_left<23>(half + bias));
  const F32x16 second = from_bits(shift_left<23>(integer - half + bias));
  return select_less(x, lowest, zero(), p * first * second);
}

/// exp(x) for x <= 0, the same bits with less work; NaN stays NaN.
CEDAR_INLINE F32x16 exp_of_nonpositive(F32x16 x) {
  using namespace exp_constants;
  const F32x16 lowest = set1(kLowest);
  const F32x16 clamped = select_less(x, lowest, lowest, x);
  const F32x16 shifted = clamped * set1(kLog2e) + set1(kRound);
  const F32x16 n = shifted - set1(kRound);
  F32x16 r = clamped - n * set1(kLn2High);
  r = r - n * set1(kLn2Low);
  F32x16 p = set1(kC7);
  p = p * r + set1(kC6);
  p = p * r + set1(kC5);
  p = p * r + set1(kC4);
  p = p * r + set1(kC3);
  p = p * r + set1(kC2);
  p = (p * (r * r) + r) + set1(1.0f);
  // 2^n is a normal number: n lies in [-126, 0].
  const F32x16 scale =
      from_bits(shift_left<23>(bits(shifted) - (bits(set1(kRound)) - set1_u32(127))));
  return select_less(x, lowest, zero(), p * scale);
}

// Scalar use goes through the vector code: the same bits by construction.
CEDAR_INLINE float exp(float x) {
  float v[kLanes];
  store(v, exp(set1(x)));
  return v[0];
}

/// 1 / (1 + e^-x) without overflow.
CEDAR_INLINE F32x16 sigmoid(F32x16 x) {
  const F32x16 one = set1(1.0f);
  const F32x16 e = exp_of_nonpositive(zero() - abs(x));
  return select_less(x, zero(), e, one) / (one + e);
}

CEDAR_INLINE float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
CEDAR_INLINE float rsqrt(float x) { return 1.0f / square_root(x); }

/// E4M3 codes (one per lane, 0..255) to fp32; 0x7f and 0xff give NaN.
CEDAR_INLINE F32x16 e4m3_to_float(U32x16 code) {
  const U32x16 magnitude = code & set1_u32(0x7f);
  const U32x16 sign = shift_left<24>(code & set1_u32(0x80));
  // Exponent field 0: (1 + m/8) * 2^-6 - 2^-6 = m * 2^-9, without a subnormal operand.
  const U32x16 base = shift_left<20>(magnitude);
  const U32x16 eight = set1_u32(8);
  const U32x16 exponent = select_less(magnitude, eight, set1_u32(121u << 23), set1_u32(120u << 23));
  const U32x16 offset = select_less(magnitude, eight, bits(set1(0.015625f)), set1_u32(0));
  const U32x16 value = bits(from_bits(base + exponent) - from_bits(offset));
  const U32x16 nan_or_value = select_less(set1_u32(0x7e), magnitude, set1_u32(0x7fc00000u), value);
  return from_bits(nan_or_value | sign);
}

CEDAR_INLINE float e8m0_to_float(uint8_t code) {
  uint32_t u = static_cast<uint32_t>(code) << 23;
  if (code == 0) u = 0x00400000u;
  if (code == 255) u = 0x7fc00000u;
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

/// E8M0 bytes (one per lane) to fp32.
CEDAR_INLINE F32x16 e8m0_to_float(U32x16 code) {
  const U32x16 smallest =
      select_less(code, set1_u32(1), set1_u32(0x00400000u), shift_left<23>(code));
  return from_bits(select_less(set1_u32(254), code, set1_u32(0x7fc00000u), smallest));
}

/// 32 E4M3 codes with one scale. Even elements, then odd ones.
struct WideGroup {
  F32x16 even, odd;
};
CEDAR_INLINE WideGroup widen_q8_group(const uint8_t* codes, float scale) {
  uint16_t pairs[kLanes];
  std::memcpy(pairs, codes, sizeof pairs);
  const U32x16 both = widen_u16(pairs);
  const F32x16 s = set1(scale);
  return {e4m3_to_float(both & set1_u32(0xff)) * s, e4m3_to_float(shift_right<8>(both)) * s};
}

/// A cache row to pair words. Its values are exact in bf16 (spec/model.md 2.3).
CEDAR_INLINE void widen_q8_words(const uint8_t* packed, int64_t columns, uint32_t* out) {
  const uint8_t* scales = packed + columns;
  for (int64_t g = 0; g < columns / 32; ++g) {
    const WideGroup x = widen_q8_group(packed + g * 32, e8m0_to_float(scales[g]));
    store_u32(out + g * 16, make_exact_pairs(x.even, x.odd));
  }
}

CEDAR_INLINE void widen_q4n_words(const uint8_t* packed, int64_t columns, uint32_t* out) {
  constexpr Bf16Table kE2m1 = {{0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,  //
                                0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0},
                               {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0, 0x00, 0x00, 0x80,
                                0xc0, 0x00, 0x40, 0x80, 0xc0},
                               {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x80, 0xbf, 0xbf,
                                0xbf, 0xc0, 0xc0, 0xc0, 0xc0}};
  const uint8_t* scale_codes = packed + columns / 2;
  const U32x16 lane = lane_index();
  float scales[kLanes];
  for (int64_t g = 0; g < columns / 32; ++g) {
    if (g % 8 == 0) {
      uint8_t codes[kLanes] = {};
      const int64_t left = columns / 16 - 2 * g;
      std::memcpy(codes, scale_codes + 2 * g, static_cast<size_t>(left < kLanes ? left : kLanes));
      store(scales, e4m3_to_float(widen_u8(codes)));
    }
    const int64_t at = 2 * (g % 8);
    const F32x16 s = from_bits(
        select_less(lane, set1_u32(8), bits(set1(scales[at])), bits(set1(scales[at + 1]))));
    const U32x16 bytes = widen_u8(packed + g * 16);
    const U32x16 values =
        lookup_pairs(kE2m1, (bytes | shift_left<12>(bytes)) & set1_u32(0x000f000fu));
    store_u32(out + g * 16, make_exact_pairs(even_of(values) * s, odd_of(values) * s));
  }
}

static void widen_q8(const uint8_t* packed, int64_t columns, uint16_t* out) {
  const uint8_t* scales = packed + columns;
  for (int64_t g = 0; g < columns / 32; ++g) {
    // Rounded: a table's scale may be so small that a value is below bf16's normal numbers.
    const WideGroup x = widen_q8_group(packed + g * 32, e8m0_to_float(scales[g]));
    store_pairs(out + g * 32, make_pairs(x.even, x.odd));
  }
}

// Four sums in turn: one alone would wait for its own addition in every step.
static float square_sum(const uint16_t* x, int64_t n) {
  F32x16 sum[4] = {zero(), zero(), zero(), zero()};
  int64_t c = 0;
  for (; c + 4 * kLanes <= n; c += 4 * kLanes) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const F32x16 v = load_bf16(x + c + i * kLanes);
      sum[i] = add_exact_product(sum[i], v, v);
    }
  }
  for (; c < n; c += kLanes) {
    const F32x16 v = load_bf16(x + c, n - c);
    sum[0] = add_exact_product(sum[0], v, v);
  }
  return reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static void rms_norm(const uint16_t* x, const uint16_t* w, uint16_t* y, int64_t n, float eps) {
  const F32x16 factor = set1(rsqrt(square_sum(x, n) / static_cast<float>(n) + eps));
  for (int64_t c = 0; c < n; c += kLanes) {
    store_bf16(y + c, load_bf16(w + c, n - c) * (load_bf16(x + c, n - c) * factor), n - c);
  }
}

static void rotate_pairs(uint16_t* x, int64_t pairs, const float* cos, const float* sin) {
  for (int64_t i = 0; i < pairs; i += kLanes) {
    const int64_t left = pairs - i;
    uint32_t words[kLanes] = {};
    const size_t bytes = static_cast<size_t>(left < kLanes ? left : kLanes) * 4;
    std::memcpy(words, x + 2 * i, bytes);
    const U32x16 pair = load_u32(words);
    const F32x16 a = even_of(pair), b = odd_of(pair);
    const F32x16 c = load(cos + i, left), s = load(sin + i, left);
    store_u32(words, make_pairs(a * c - b * s, a * s + b * c));
    std::memcpy(x + 2 * i, words, bytes);
  }
}

static void rotate_halves(uint16_t* x, int64_t half, const float* cos, const float* sin) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t left = half - i;
    const F32x16 a = load_bf16(x + i, left), b = load_bf16(x + half + i, left);
    const F32x16 c = load(cos + i, left), s = load(sin + i, left);
    store_bf16(x + i, a * c - b * s, left);
    store_bf16(x + half + i, b * c + a * s, left);
  }
}

static void silu_mul(const uint16_t* gate, const uint16_t* up, uint16_t* y, int64_t n) {
  for (int64_t c = 0; c < n; c += kLanes) {
    const F32x16 g = load_bf16(gate + c, n - c);
    store_bf16(y + c, round_bf16(g * sigmoid(g)) * load_bf16(up + c, n - c), n - c);
  }
}

static void exp_row(const float* x, float* y, int64_t n) {
  for (int64_t c = 0; c < n; c += kLanes) {
    store(y + c, exp(load(x + c, n - c)), n - c);
  }
}

static float engram_dot(const uint16_t* x, const uint16_t* key, const uint16_t* q_weight,
                        const uint16_t* k_weight, int64_t d) {
  F32x16 sum = zero();
  for (int64_t c = 0; c < d; c += kLanes) {
    const int64_t left = d - c;
    const F32x16 weight = load_bf16(q_weight + c, left) * load_bf16(k_weight + c, left);
    sum = sum + (load_bf16(x + c, left) * weight) * load_bf16(key + c, left);
  }
  return reduce_add(sum);
}

static void add_scaled(uint16_t* x, const uint16_t* value, float gate, int64_t d) {
  const F32x16 g = set1(gate);
  for (int64_t c = 0; c < d; c += kLanes) {
    const int64_t left = d - c;
    store_bf16(x + c, load_bf16(x + c, left) + g * load_bf16(value + c, left), left);
  }
}

}  // namespace cedar::kernels::cpu::CEDAR_ISA
