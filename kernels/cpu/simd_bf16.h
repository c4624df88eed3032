// Included by row_kernels_<isa>.cpp after simd.h: bf16 and pairs of bf16.

namespace cedar::kernels::cpu::CEDAR_ISA {

// Intrinsics: g++ 12 takes __builtin_convertvector of these sizes apart lane by lane.
CEDAR_INLINE U32x16 widen_u16(const uint16_t* p) {
  U32x16 r;
  CEDAR_PARTS(i) {
#if CEDAR_SIMD_BYTES == 64
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    r.part[i] = reinterpret_cast<NativeU>(_mm512_cvtepu16_epi32(h));
#elif CEDAR_SIMD_BYTES == 32
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * kNative));
    r.part[i] = reinterpret_cast<NativeU>(_mm256_cvtepu16_epi32(h));
#else
    const __m128i h = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + i * kNative));
    r.part[i] = reinterpret_cast<NativeU>(_mm_cvtepu16_epi32(h));
#endif
  }
  return r;
}
CEDAR_INLINE U32x16 widen_u8(const uint8_t* p) {
  U32x16 r;
  CEDAR_PARTS(i) {
#if CEDAR_SIMD_BYTES == 64
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    r.part[i] = reinterpret_cast<NativeU>(_mm512_cvtepu8_epi32(b));
#elif CEDAR_SIMD_BYTES == 32
    const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + i * kNative));
    r.part[i] = reinterpret_cast<NativeU>(_mm256_cvtepu8_epi32(b));
#else
    int32_t four;
    std::memcpy(&four, p + i * kNative, sizeof four);
    r.part[i] = reinterpret_cast<NativeU>(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four)));
#endif
  }
  return r;
}
CEDAR_INLINE F32x16 load_bf16(const uint16_t* p) { return from_bits(shift_left<16>(widen_u16(p))); }
CEDAR_INLINE F32x16 load_bf16(const uint16_t* p, int64_t left) {
  if (left >= kLanes) return load_bf16(p);
  uint16_t v[kLanes] = {};
  std::memcpy(v, p, static_cast<size_t>(left) * 2);
  return load_bf16(v);
}

/// Round to nearest even; the bf16 is in the upper half of the lane, the lower half is zero. NaN
/// stays NaN.
CEDAR_INLINE U32x16 round_bf16_bits(F32x16 x) {
  const U32x16 u = bits(x);
  const U32x16 rounded = u + set1_u32(0x7fffu) + (shift_right<16>(u) & set1_u32(1));
  const U32x16 magnitude = u & set1_u32(0x7fffffffu);
  const U32x16 kept =
      select_less(set1_u32(0x7f800000u), magnitude, u | set1_u32(0x400000u), rounded);
  return kept & set1_u32(0xffff0000u);
}
CEDAR_INLINE F32x16 round_bf16(F32x16 x) { return from_bits(round_bf16_bits(x)); }

/// Stores the lower halves of the lanes, whose upper halves are zero.
CEDAR_INLINE void store_u16(uint16_t* p, U32x16 x) {
  CEDAR_PARTS(i) {
#if CEDAR_SIMD_BYTES == 64
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(x.part[i])));
#elif CEDAR_SIMD_BYTES == 32
    const __m256i v = reinterpret_cast<__m256i>(x.part[i]);
    const __m128i h = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + i * kNative), h);
#else
    const __m128i v = reinterpret_cast<__m128i>(x.part[i]);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p + i * kNative), _mm_packus_epi32(v, v));
#endif
  }
}
/// Stores the lowest bytes of the lanes, whose other bytes are zero.
CEDAR_INLINE void store_u8(uint8_t* p, U32x16 x) {
#if CEDAR_SIMD_BYTES == 64
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(x.part[0])));
#else
  uint16_t halves[kLanes];
  store_u16(halves, x);
  const __m128i* h = reinterpret_cast<const __m128i*>(halves);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi16(_mm_loadu_si128(h), _mm_loadu_si128(h + 1)));
#endif
}
CEDAR_INLINE void store_bf16(uint16_t* p, F32x16 x) {
  store_u16(p, shift_right<16>(round_bf16_bits(x)));
}
CEDAR_INLINE void store_bf16(uint16_t* p, F32x16 x, int64_t left) {
  if (left >= kLanes) {
    store_bf16(p, x);
    return;
  }
  uint16_t v[kLanes];
  store_bf16(v, x);
  std::memcpy(p, v, static_cast<size_t>(left) * 2);
}

// A pair word holds two neighbouring bf16: the even element in its lower half, the odd one in its
// upper.
CEDAR_INLINE F32x16 even_of(U32x16 pairs) { return from_bits(shift_left<16>(pairs)); }
CEDAR_INLINE F32x16 odd_of(U32x16 pairs) { return from_bits(pairs & set1_u32(0xffff0000u)); }
CEDAR_INLINE U32x16 make_pairs(F32x16 even, F32x16 odd) {
  return shift_right<16>(round_bf16_bits(even)) | round_bf16_bits(odd);
}
CEDAR_INLINE void store_pairs(uint16_t* p, U32x16 pairs) {
  CEDAR_PARTS(i) std::memcpy(p + 2 * i * kNative, &pairs.part[i], sizeof pairs.part[i]);
}
/// make_pairs() where both are bf16 already.
CEDAR_INLINE U32x16 make_exact_pairs(F32x16 even, F32x16 odd) {
  return shift_right<16>(bits(even)) | bits(odd);
}

/// c + a * b where a * b is exact in fp32, so that fusing changes nothing.
CEDAR_INLINE NativeF add_exact_product(NativeF c, NativeF a, NativeF b) {
#if CEDAR_SIMD_BYTES == 64
  return _mm512_fmadd_ps(a, b, c);
#elif CEDAR_SIMD_BYTES == 32
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
CEDAR_INLINE F32x16 add_exact_product(F32x16 c, F32x16 a, F32x16 b) {
  F32x16 r;
  CEDAR_PARTS(i) r.part[i] = add_exact_product(c.part[i], a.part[i], b.part[i]);
  return r;
}

/// A pair word as the broadcast operand of accumulate_pairs().
#if CEDAR_SIMD_BYTES == 64
typedef uint32_t PairOperand;
CEDAR_INLINE PairOperand pair_operand(uint32_t word) { return word; }
#else
struct PairOperand {
  float odd, even;
};
CEDAR_INLINE PairOperand pair_operand(uint32_t word) {
  const uint32_t halves[2] = {word & 0xffff0000u, word << 16};
  PairOperand r;
  std::memcpy(&r, halves, sizeof r);
  return r;
}
#endif

/// sum[q][v] = (sum[q][v] + odd * odd) + even * even, each step rounded: what vdpbf16ps computes.
/// kVectors vectors of pair words against one operand of each of kQueries queries.
template <int kQueries, int kVectors>
CEDAR_INLINE void accumulate_pairs(F32x16 (&sum)[kQueries][kVectors], const uint32_t* words,
                                   const PairOperand* operands, int64_t operand_stride) {
#if CEDAR_SIMD_BYTES == 64
  U32x16 k[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) k[v] = load_u32(words + v * kLanes);
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
    const U32x16 pair = set1_u32(operands[q * operand_stride]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[q][v].part[0] =
          _mm512_dpbf16_ps(sum[q][v].part[0], reinterpret_cast<__m512bh>(k[v].part[0]),
                           reinterpret_cast<__m512bh>(pair.part[0]));
    }
  }
#else
  // Register by register, so that no more than one unpacked word is alive at a time.
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    CEDAR_PARTS(i) {
      NativeU word;
      std::memcpy(&word, words + v * kLanes + i * kNative, sizeof word);
      const NativeF odd = reinterpret_cast<NativeF>(word & 0xffff0000u);
      const NativeF even = reinterpret_cast<NativeF>(word << 16);
#pragma GCC unroll 4
      for (int q = 0; q < kQueries; ++q) {
        NativeF& target = sum[q][v].part[i];
        target = add_exact_product(target, odd, broadcast(operands[q * operand_stride].odd));
        target = add_exact_product(target, even, broadcast(operands[q * operand_stride].even));
      }
    }
  }
#endif
}

}  // namespace cedar::kernels::cpu::CEDAR_ISA
