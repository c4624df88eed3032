// Sixteen fp32 lanes on whatever registers one instruction set has. Included by the row_kernels_<isa>.cpp
// files only, after they define
//   CEDAR_ISA          namespace of this level: portable, avx2 or avx512
//   CEDAR_SIMD_BYTES   register width: 16, 32 or 64
// Code written over this file gives the same bits at every level: the lane count is fixed, reductions use one
// tree, and fused multiply-adds appear only where the product is exact in fp32 (bf16 x bf16, powers of two).
// Everything is always_inline or file-local: no wide function may reach the linker under a shared name.

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define CEDAR_INLINE static inline __attribute__((always_inline))
// The trip count is a constant; unrolling keeps the parts in registers.
#define CEDAR_PARTS(i) _Pragma("GCC unroll 4") for (int i = 0; i < kParts; ++i)

namespace cedar::kernels::cpu::CEDAR_ISA {

constexpr int kLanes = 16;
constexpr int kNative = CEDAR_SIMD_BYTES / 4;  // lanes of one register
constexpr int kParts = kLanes / kNative;

typedef float NativeF __attribute__((vector_size(CEDAR_SIMD_BYTES)));
typedef uint32_t NativeU __attribute__((vector_size(CEDAR_SIMD_BYTES)));
typedef int32_t NativeI __attribute__((vector_size(CEDAR_SIMD_BYTES)));

struct F32x16 {
  NativeF part[kParts];
};
struct U32x16 {
  NativeU part[kParts];
};

// ---- memory ---------------------------------------------------------------------------------------------

CEDAR_INLINE NativeF broadcast(float x) {
#if CEDAR_SIMD_BYTES == 64
  return _mm512_set1_ps(x);
#elif CEDAR_SIMD_BYTES == 32
  return _mm256_set1_ps(x);
#else
  return _mm_set1_ps(x);
#endif
}
CEDAR_INLINE F32x16 set1(float x) {
  F32x16 r;
  CEDAR_PARTS(i) r.part[i] = broadcast(x);
  return r;
}
CEDAR_INLINE F32x16 zero() {
  F32x16 r;
  CEDAR_PARTS(i) r.part[i] = NativeF{};
  return r;
}
CEDAR_INLINE U32x16 set1_u32(uint32_t x) {
  U32x16 r;
  CEDAR_PARTS(i) r.part[i] = NativeU{} + x;
  return r;
}
// Register by register: g++ copies a whole struct in 16-byte pieces, and a wider load of fresh pieces stalls.
CEDAR_INLINE F32x16 load(const float* p) {
  F32x16 r;
  CEDAR_PARTS(i) std::memcpy(&r.part[i], p + i * kNative, sizeof r.part[i]);
  return r;
}
CEDAR_INLINE U32x16 load_u32(const uint32_t* p) {
  U32x16 r;
  CEDAR_PARTS(i) std::memcpy(&r.part[i], p + i * kNative, sizeof r.part[i]);
  return r;
}
CEDAR_INLINE void store(float* p, F32x16 x) {
  CEDAR_PARTS(i) std::memcpy(p + i * kNative, &x.part[i], sizeof x.part[i]);
}
CEDAR_INLINE void store_u32(uint32_t* p, U32x16 x) {
  CEDAR_PARTS(i) std::memcpy(p + i * kNative, &x.part[i], sizeof x.part[i]);
}

/// The first min(left, 16) values, zeros after them. `left` > 0.
CEDAR_INLINE F32x16 load(const float* p, int64_t left) {
  if (left >= kLanes) return load(p);
  float v[kLanes] = {};
  std::memcpy(v, p, static_cast<size_t>(left) * 4);
  return load(v);
}
CEDAR_INLINE void store(float* p, F32x16 x, int64_t left) {
  if (left >= kLanes) {
    store(p, x);
    return;
  }
  float v[kLanes];
  store(v, x);
  std::memcpy(p, v, static_cast<size_t>(left) * 4);
}

// ---- bit casts and arithmetic ---------------------------------------------------------------------------

CEDAR_INLINE U32x16 bits(F32x16 x) {
  U32x16 r;
  CEDAR_PARTS(i) r.part[i] = reinterpret_cast<NativeU>(x.part[i]);
  return r;
}
CEDAR_INLINE F32x16 from_bits(U32x16 x) {
  F32x16 r;
  CEDAR_PARTS(i) r.part[i] = reinterpret_cast<NativeF>(x.part[i]);
  return r;
}

#define CEDAR_BINARY(Type, op)                                     \
  CEDAR_INLINE Type operator op(Type a, Type b) {                  \
    Type r;                                                        \
    CEDAR_PARTS(i) r.part[i] = a.part[i] op b.part[i];             \
    return r;                                                      \
  }
CEDAR_BINARY(F32x16, +)
CEDAR_BINARY(F32x16, -)
CEDAR_BINARY(F32x16, *)
CEDAR_BINARY(F32x16, /)
CEDAR_BINARY(U32x16, +)
CEDAR_BINARY(U32x16, -)
CEDAR_BINARY(U32x16, &)
CEDAR_BINARY(U32x16, |)
#undef CEDAR_BINARY

template <int kBits>
CEDAR_INLINE U32x16 shift_left(U32x16 x) {
  U32x16 r;
  CEDAR_PARTS(i) r.part[i] = x.part[i] << kBits;
  return r;
}
template <int kBits>
CEDAR_INLINE U32x16 shift_right(U32x16 x) {
  U32x16 r;
  CEDAR_PARTS(i) r.part[i] = x.part[i] >> kBits;
  return r;
}
template <int kBits>
CEDAR_INLINE U32x16 shift_right_signed(U32x16 x) {
  U32x16 r;
  CEDAR_PARTS(i) {
    r.part[i] = reinterpret_cast<NativeU>(reinterpret_cast<NativeI>(x.part[i]) >> kBits);
  }
  return r;
}

/// a > b ? a : b per lane: b where one of them is NaN.
CEDAR_INLINE F32x16 max(F32x16 a, F32x16 b) {
  F32x16 r;
  CEDAR_PARTS(i) r.part[i] = a.part[i] > b.part[i] ? a.part[i] : b.part[i];
  return r;
}
CEDAR_INLINE F32x16 min(F32x16 a, F32x16 b) {
  F32x16 r;
  CEDAR_PARTS(i) r.part[i] = a.part[i] < b.part[i] ? a.part[i] : b.part[i];
  return r;
}
/// a < b ? x : y per lane.
CEDAR_INLINE F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  F32x16 r;
  CEDAR_PARTS(i) r.part[i] = a.part[i] < b.part[i] ? x.part[i] : y.part[i];
  return r;
}
CEDAR_INLINE U32x16 select_less(U32x16 a, U32x16 b, U32x16 x, U32x16 y) {
  U32x16 r;
  CEDAR_PARTS(i) r.part[i] = a.part[i] < b.part[i] ? x.part[i] : y.part[i];
  return r;
}
CEDAR_INLINE F32x16 abs(F32x16 x) { return from_bits(bits(x) & set1_u32(0x7fffffffu)); }

/// Lanes 0..15.
CEDAR_INLINE U32x16 lane_index() {
  constexpr uint32_t kIndex[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load_u32(kIndex);
}

/// Lane l plus lane l + 8, then + 4, + 2, + 1: the same tree at every level.
CEDAR_INLINE float reduce_add(F32x16 x) {
  float v[kLanes];
  store(v, x);
  for (int l = 0; l < 8; ++l) v[l] += v[l + 8];
  for (int l = 0; l < 4; ++l) v[l] += v[l + 4];
  return (v[0] + v[2]) + (v[1] + v[3]);
}
CEDAR_INLINE float reduce_max(F32x16 x) {
  float v[kLanes];
  store(v, x);
  for (int l = 0; l < 8; ++l) v[l] = v[l] > v[l + 8] ? v[l] : v[l + 8];
  for (int l = 0; l < 4; ++l) v[l] = v[l] > v[l + 4] ? v[l] : v[l + 4];
  const float a = v[0] > v[2] ? v[0] : v[2];
  const float b = v[1] > v[3] ? v[1] : v[3];
  return a > b ? a : b;
}

// ---- bf16 -----------------------------------------------------------------------------------------------

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

/// Round to nearest even; the bf16 is in the upper half of the lane, the lower half is zero. NaN stays NaN.
CEDAR_INLINE U32x16 round_bf16_bits(F32x16 x) {
  const U32x16 u = bits(x);
  const U32x16 rounded = u + set1_u32(0x7fffu) + (shift_right<16>(u) & set1_u32(1));
  const U32x16 magnitude = u & set1_u32(0x7fffffffu);
  const U32x16 kept = select_less(set1_u32(0x7f800000u), magnitude, u | set1_u32(0x400000u), rounded);
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
CEDAR_INLINE void store_bf16(uint16_t* p, F32x16 x) { store_u16(p, shift_right<16>(round_bf16_bits(x))); }
CEDAR_INLINE void store_bf16(uint16_t* p, F32x16 x, int64_t left) {
  if (left >= kLanes) {
    store_bf16(p, x);
    return;
  }
  uint16_t v[kLanes];
  store_bf16(v, x);
  std::memcpy(p, v, static_cast<size_t>(left) * 2);
}

// A pair word holds two neighbouring bf16: the even element in its lower half, the odd one in its upper.
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

/// sum[q][v] = (sum[q][v] + odd * odd) + even * even, each step rounded: what vdpbf16ps computes. kVectors
/// vectors of pair words against one operand of each of kQueries queries.
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
      sum[q][v].part[0] = _mm512_dpbf16_ps(sum[q][v].part[0], reinterpret_cast<__m512bh>(k[v].part[0]),
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

// ---- bytes ----------------------------------------------------------------------------------------------

/// table[nibble] for every byte of x; the bytes of x are 0..15. `table` has 16 bytes.
CEDAR_INLINE U32x16 lookup_nibbles(const uint8_t* table, U32x16 x) {
  U32x16 r;
  const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  CEDAR_PARTS(i) {
#if CEDAR_SIMD_BYTES == 64
    r.part[i] = reinterpret_cast<NativeU>(
        _mm512_shuffle_epi8(
        _mm512_maskz_broadcast_i32x4(0xffff, t), reinterpret_cast<__m512i>(x.part[i])));
#elif CEDAR_SIMD_BYTES == 32
    r.part[i] = reinterpret_cast<NativeU>(
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), reinterpret_cast<__m256i>(x.part[i])));
#else
    r.part[i] = reinterpret_cast<NativeU>(_mm_shuffle_epi8(t, reinterpret_cast<__m128i>(x.part[i])));
#endif
  }
  return r;
}

/// The bf16 table[i] for both halves of every lane, which hold i = 0..15. REQUIRES: table[0] == 0. Kept in two
/// forms because a table of words is one permutation in AVX-512 and two of bytes below it.
struct Bf16Table {
  uint16_t words[16];
  uint8_t low[16];
  uint8_t high[16];
};
CEDAR_INLINE U32x16 lookup_pairs(const Bf16Table& table, U32x16 x) {
#if CEDAR_SIMD_BYTES == 64
  const __m512i words = _mm512_castsi256_si512(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table.words)));
  U32x16 r;
  r.part[0] = reinterpret_cast<NativeU>(
      _mm512_permutexvar_epi16(reinterpret_cast<__m512i>(x.part[0]), words));
  return r;
#else
  // The upper byte of each half is zero and finds table[0].
  return lookup_nibbles(table.low, x) | shift_left<8>(lookup_nibbles(table.high, x));
#endif
}

/// sum[q][v] = bias[q] + the products of kWords words: (unsigned bytes of words) * (signed bytes of codes),
/// four to a lane. Word s of vector v lies at words[s * word_stride + 16 v]; word s of query q, to be
/// broadcast, at codes + q * code_stride + 4 s. REQUIRES: 2 kWords products sum to less than 2^15.
template <int kQueries, int kVectors, int kWords>
CEDAR_INLINE void dot_bytes(U32x16 (&sum)[kQueries][kVectors], const int32_t* bias, int64_t bias_stride,
                            const uint32_t* words, int64_t word_stride, const int8_t* codes,
                            int64_t code_stride) {
  const auto code = [&](int q, int s) __attribute__((always_inline)) {
    int32_t word;
    std::memcpy(&word, codes + q * code_stride + 4 * s, sizeof word);
    return word;
  };
#if CEDAR_SIMD_BYTES == 64
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[q][v] = set1_u32(static_cast<uint32_t>(bias[q * bias_stride]));
  }
#pragma GCC unroll 8
  for (int s = 0; s < kWords; ++s) {
    U32x16 k[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) k[v] = load_u32(words + s * word_stride + v * kLanes);
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
      const __m512i word = _mm512_set1_epi32(code(q, s));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sum[q][v].part[0] = reinterpret_cast<NativeU>(
            _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum[q][v].part[0]),
                                reinterpret_cast<__m512i>(k[v].part[0]), word));
      }
    }
  }
#else
  // Sixteen-bit partial sums, register by register.
#if CEDAR_SIMD_BYTES == 32
  typedef __m256i Bytes;
#define CEDAR_BYTE_OP(op) _mm256_##op
#else
  typedef __m128i Bytes;
#define CEDAR_BYTE_OP(op) _mm_##op
#endif
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    CEDAR_PARTS(i) {
      Bytes partial[kQueries] = {};
      // Unrolled, g++ would regroup the sums and run out of registers.
#pragma GCC unroll 1
      for (int s = 0; s < kWords; ++s) {
        Bytes k;
        std::memcpy(&k, words + s * word_stride + v * kLanes + i * kNative, sizeof k);
#pragma GCC unroll 4
        for (int q = 0; q < kQueries; ++q) {
          const Bytes products = CEDAR_BYTE_OP(maddubs_epi16)(k, CEDAR_BYTE_OP(set1_epi32)(code(q, s)));
          partial[q] = CEDAR_BYTE_OP(add_epi16)(partial[q], products);
        }
      }
#pragma GCC unroll 4
      for (int q = 0; q < kQueries; ++q) {
        const Bytes total = CEDAR_BYTE_OP(madd_epi16)(partial[q], CEDAR_BYTE_OP(set1_epi16)(1));
        sum[q][v].part[i] = reinterpret_cast<NativeU>(
            CEDAR_BYTE_OP(add_epi32)(total, CEDAR_BYTE_OP(set1_epi32)(bias[q * bias_stride])));
      }
    }
  }
#undef CEDAR_BYTE_OP
#endif
}

CEDAR_INLINE F32x16 signed_to_float(U32x16 x) {
  F32x16 r;
  CEDAR_PARTS(i) {
    r.part[i] = __builtin_convertvector(reinterpret_cast<NativeI>(x.part[i]), NativeF);
  }
  return r;
}

/// Bit l set where a[l] > b[l].
CEDAR_INLINE uint32_t greater_mask(F32x16 a, F32x16 b) {
  uint32_t mask = 0;
  CEDAR_PARTS(i) {
#if CEDAR_SIMD_BYTES == 64
    mask = _mm512_cmp_ps_mask(a.part[i], b.part[i], _CMP_GT_OQ);
#elif CEDAR_SIMD_BYTES == 32
    mask |= static_cast<uint32_t>(
                _mm256_movemask_ps(_mm256_cmp_ps(a.part[i], b.part[i], _CMP_GT_OQ)))
            << (i * kNative);
#else
    mask |= static_cast<uint32_t>(_mm_movemask_ps(_mm_cmpgt_ps(a.part[i], b.part[i])))
            << (i * kNative);
#endif
  }
  return mask;
}

// ---- transposition --------------------------------------------------------------------------------------

/// dst[c][r] = row_at(r)[c] for 16 rows and 16 columns of words; row_at gives any byte pointer. dst_stride in
/// words.
template <class RowAt>
CEDAR_INLINE void transpose_16x16(const RowAt& row_at, uint32_t* dst, int64_t dst_stride) {
  // log2(width) perfect shuffles of row i with row i + width/2 transpose a width x width tile.
  typedef int32_t Lanes __attribute__((vector_size(CEDAR_SIMD_BYTES)));
  Lanes low, high;
#pragma GCC unroll 16
  for (int l = 0; l < kNative; ++l) {
    low[l] = l / 2 + (l & 1) * kNative;
    high[l] = low[l] + kNative / 2;
  }
  for (int br = 0; br < kLanes; br += kNative) {
    for (int bc = 0; bc < kLanes; bc += kNative) {
      NativeU a[kNative], b[kNative];
#pragma GCC unroll 16
      for (int i = 0; i < kNative; ++i) std::memcpy(&a[i], row_at(br + i) + bc * 4, sizeof a[i]);
#pragma GCC unroll 4
      for (int stage = 1; stage < kNative; stage *= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < kNative / 2; ++i) {
          b[2 * i] = __builtin_shuffle(a[i], a[i + kNative / 2], low);
          b[2 * i + 1] = __builtin_shuffle(a[i], a[i + kNative / 2], high);
        }
#pragma GCC unroll 16
        for (int i = 0; i < kNative; ++i) a[i] = b[i];
      }
#pragma GCC unroll 16
      for (int i = 0; i < kNative; ++i) std::memcpy(dst + (bc + i) * dst_stride + br, &a[i], sizeof a[i]);
    }
  }
}

}  // namespace cedar::kernels::cpu::CEDAR_ISA
