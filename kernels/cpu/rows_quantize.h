// Included by row_kernels_<isa>.cpp after rows_math.h: Q4X and Q4N rows (spec/model.md 2.3), 32
// elements at a time. quantize_row() of kernels/quantize.h is the definition; the tests compare
// every byte with it.

namespace cedar::kernels::cpu::CEDAR_ISA {

/// E2M1 codes of x: nearest, ties to the even code, saturating; NaN gives 7.
CEDAR_INLINE U32x16 float_to_e2m1(F32x16 x) {
  const U32x16 u = bits(x);
  const U32x16 sign = shift_right<28>(u) & set1_u32(8);
  const F32x16 a = abs(x);
  // Below 1 the grid is 0.5, the last place of 2^22; from 1 on it is one mantissa bit.
  const F32x16 anchor = set1(4194304.0f);
  const U32x16 small = bits(a + anchor) - bits(anchor);
  const U32x16 magnitude = u & set1_u32(0x7fffffffu);
  const U32x16 rounded =
      magnitude + set1_u32(0x1fffffu) + (shift_right<22>(magnitude) & set1_u32(1));
  const U32x16 large = shift_right<22>(rounded) - set1_u32(252);
  const U32x16 limited = select_less(large, set1_u32(7), large, set1_u32(7));
  const U32x16 one = bits(set1(1.0f));
  return select_less(magnitude, one, small, limited) | sign;
}

/// One group's scale: the stored code and its value.
struct GroupScale {
  uint8_t code;
  float value;
};
constexpr uint32_t kInfinityBits = 0x7f800000u;

CEDAR_INLINE float float_of(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

/// P2(max(amax, 6 * 2^-126), 1/6); `amax` as bits, whose order is that of the magnitudes.
CEDAR_INLINE GroupScale scale_q4x(uint32_t amax) {
  if (amax >= kInfinityBits) return {255, __builtin_nanf("")};
  const float floor = 0x1.8p-124f;
  const float limited = float_of(amax) > floor ? float_of(amax) : floor;
  const float t = limited * (1.0f / 6.0f);
  uint32_t u;
  std::memcpy(&u, &t, sizeof u);
  const uint8_t code = static_cast<uint8_t>((u >> 23) + ((u & 0x7fffffu) != 0 ? 1 : 0));
  return {code, e8m0_to_float(code)};
}

/// E4M3(max(amax, 6 * 2^-9) / 6), a true division.
CEDAR_INLINE GroupScale scale_q4n(uint32_t amax) {
  if (amax >= kInfinityBits) return {0x7f, __builtin_nanf("")};
  const float floor = 0x1.8p-7f;
  const float t = (float_of(amax) > floor ? float_of(amax) : floor) / 6.0f;
  uint32_t u;
  std::memcpy(&u, &t, sizeof u);
  uint32_t code;
  if (u < 0x3c800000u) {  // below 2^-6: the grid is 2^-9, the last place of 2^14
    const float shifted = t + 16384.0f;
    std::memcpy(&code, &shifted, sizeof code);
    code -= 0x46800000u;
  } else {
    code = ((u + 0x7ffffu + ((u >> 20) & 1u)) >> 20) - (120u << 3);
    code = code < 0x7e ? code : 0x7e;
  }
  float v[kLanes];
  store(v, e4m3_to_float(set1_u32(code)));
  return {static_cast<uint8_t>(code), v[0]};
}

template <bool kQ4n>
CEDAR_INLINE void quantize_q4(const uint16_t* x, int64_t columns, uint8_t* packed) {
  uint8_t* scales = packed + columns / 2;
  for (int64_t c = 0; c < columns; c += 32) {
    // Q4N rows may end with half a block: the missing half is zero and is not stored.
    const bool whole = columns - c >= 32;
    uint32_t words[kLanes] = {};
    std::memcpy(words, x + c, whole ? 64 : 32);
    const U32x16 pairs = load_u32(words);
    const F32x16 even = even_of(pairs), odd = odd_of(pairs);
    const U32x16 a = bits(abs(even)), b = bits(abs(odd));
    uint32_t magnitude[kLanes];
    store_u32(magnitude, select_less(a, b, b, a));
    uint32_t amax[2] = {0, 0};
    for (int half = 0; half < 2; ++half) {
      for (int l = 0; l < 8; ++l) {
        const uint32_t m = magnitude[half * 8 + l];
        amax[half] = amax[half] < m ? m : amax[half];
      }
    }
    F32x16 s;
    if (kQ4n) {
      const GroupScale first = scale_q4n(amax[0]), second = scale_q4n(amax[1]);
      scales[c / 16] = first.code;
      if (whole) scales[c / 16 + 1] = second.code;
      s = from_bits(select_less(lane_index(), set1_u32(8), bits(set1(first.value)),
                                bits(set1(second.value))));
    } else {
      const GroupScale scale = scale_q4x(amax[0] < amax[1] ? amax[1] : amax[0]);
      scales[c / 32] = scale.code;
      s = set1(scale.value);
    }
    const U32x16 codes = float_to_e2m1(even / s) | shift_left<4>(float_to_e2m1(odd / s));
    uint8_t bytes[kLanes];
    store_u8(bytes, codes);
    std::memcpy(packed + c / 2, bytes, whole ? 16 : 8);
  }
}

static void quantize_q4x(const uint16_t* x, int64_t columns, uint8_t* packed) {
  quantize_q4<false>(x, columns, packed);
}
static void quantize_q4n(const uint16_t* x, int64_t columns, uint8_t* packed) {
  quantize_q4<true>(x, columns, packed);
}

}  // namespace cedar::kernels::cpu::CEDAR_ISA
