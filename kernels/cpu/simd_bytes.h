// Included by row_kernels_<isa>.cpp after simd.h: bytes, look-up tables, byte dot products,
// transposition.

namespace cedar::kernels::cpu::CEDAR_ISA {

/// table[nibble] for every byte of x; the bytes of x are 0..15. `table` has 16 bytes.
CEDAR_INLINE U32x16 lookup_nibbles(const uint8_t* table, U32x16 x) {
  U32x16 r;
  const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  CEDAR_PARTS(i) {
#if CEDAR_SIMD_BYTES == 64
    r.part[i] = reinterpret_cast<NativeU>(_mm512_shuffle_epi8(
        _mm512_maskz_broadcast_i32x4(0xffff, t), reinterpret_cast<__m512i>(x.part[i])));
#elif CEDAR_SIMD_BYTES == 32
    r.part[i] = reinterpret_cast<NativeU>(
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), reinterpret_cast<__m256i>(x.part[i])));
#else
    r.part[i] =
        reinterpret_cast<NativeU>(_mm_shuffle_epi8(t, reinterpret_cast<__m128i>(x.part[i])));
#endif
  }
  return r;
}

/// The bf16 table[i] for both halves of every lane, which hold i = 0..15. REQUIRES: table[0] == 0.
/// Kept in two forms because a table of words is one permutation in AVX-512 and two of bytes below
/// it.
struct Bf16Table {
  uint16_t words[16];
  uint8_t low[16];
  uint8_t high[16];
};
CEDAR_INLINE U32x16 lookup_pairs(const Bf16Table& table, U32x16 x) {
#if CEDAR_SIMD_BYTES == 64
  const __m512i words =
      _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(table.words)));
  U32x16 r;
  r.part[0] = reinterpret_cast<NativeU>(
      _mm512_permutexvar_epi16(reinterpret_cast<__m512i>(x.part[0]), words));
  return r;
#else
  // The upper byte of each half is zero and finds table[0].
  return lookup_nibbles(table.low, x) | shift_left<8>(lookup_nibbles(table.high, x));
#endif
}

/// sum[q][v] = bias[q] + the products of kWords words: (unsigned bytes of words) * (signed bytes of
/// codes), four to a lane. Word s of vector v lies at words[s * word_stride + 16 v]; word s of
/// query q, to be broadcast, at codes + q * code_stride + 4 s. REQUIRES: 2 kWords products sum to
/// less than 2^15.
template <int kQueries, int kVectors, int kWords>
CEDAR_INLINE void dot_bytes(U32x16 (&sum)[kQueries][kVectors], const int32_t* bias,
                            int64_t bias_stride, const uint32_t* words, int64_t word_stride,
                            const int8_t* codes, int64_t code_stride) {
  const auto code = [&](int q, int s) __attribute__((always_inline)) {
    int32_t word;
    std::memcpy(&word, codes + q * code_stride + 4 * s, sizeof word);
    return word;
  };
#if CEDAR_SIMD_BYTES == 64
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      sum[q][v] = set1_u32(static_cast<uint32_t>(bias[q * bias_stride]));
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
          const Bytes products =
              CEDAR_BYTE_OP(maddubs_epi16)(k, CEDAR_BYTE_OP(set1_epi32)(code(q, s)));
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
    mask |=
        static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.part[i], b.part[i], _CMP_GT_OQ)))
        << (i * kNative);
#else
    mask |= static_cast<uint32_t>(_mm_movemask_ps(_mm_cmpgt_ps(a.part[i], b.part[i])))
            << (i * kNative);
#endif
  }
  return mask;
}

/// dst[c][r] = row_at(r)[c] for 16 rows and 16 columns of words; row_at gives any byte pointer.
/// dst_stride in words.
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
      for (int i = 0; i < kNative; ++i)
        std::memcpy(dst + (bc + i) * dst_stride + br, &a[i], sizeof a[i]);
    }
  }
}

}  // namespace cedar::kernels::cpu::CEDAR_ISA
