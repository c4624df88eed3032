// IsaKernels for AVX-512 with BF16 and VBMI (Zen 4 and later, Sapphire Rapids and later): weights become bf16 and
// are multiplied by vdpbf16ps, 32 products an instruction.

#include <immintrin.h>

#include <cstdint>

namespace cedar::kernels::cpu {
namespace {
constexpr int kLanes = 16;
[[gnu::always_inline]] inline __m512 fused_or_plain(__m512 a, __m512 b, __m512 c) {
  return _mm512_fmadd_ps(a, b, c);
}
[[gnu::always_inline]] inline __m512i widen_u16(const uint16_t* p) {
  return _mm512_maskz_cvtepu16_epi32(0xffff,
                                     _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
[[gnu::always_inline]] inline __m512 square_root(__m512 x) { return _mm512_sqrt_ps(x); }
}  // namespace
}  // namespace cedar::kernels::cpu

#include "kernels/cpu/isa_body.h"

namespace cedar::kernels::cpu {
namespace {

struct alignas(64) Tables {
  /// The two bytes of the bf16 of a code's magnitude.
  uint8_t e4m3_low[128];
  uint8_t e4m3_high[128];
  /// The bf16 of a code, twice: a 5-bit index then need not be cut to the 4 bits of a code.
  uint16_t e2m1[32];
};

constexpr Tables make_tables() {
  Tables t{};
  for (int i = 0; i < 128; ++i) {
    int exponent = i >> 3, mantissa = i & 7;
    int bf16 = 0;
    if (i == 127) {
      bf16 = 0x7fc0;
    } else if (i != 0) {
      if (exponent == 0) {  // subnormal: shift the leading one out of the mantissa
        exponent = 1;
        while (mantissa < 8) {
          mantissa *= 2;
          --exponent;
        }
        mantissa -= 8;
      }
      bf16 = ((exponent + 120) << 7) | (mantissa << 4);
    }
    t.e4m3_low[i] = static_cast<uint8_t>(bf16 & 255);
    t.e4m3_high[i] = static_cast<uint8_t>(bf16 >> 8);
  }
  constexpr int kE2m1[8] = {0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0};
  for (int i = 0; i < 32; ++i) {
    t.e2m1[i] = static_cast<uint16_t>(kE2m1[i & 7] | ((i & 8) != 0 ? 0x8000 : 0));
  }
  return t;
}

constexpr Tables kTables = make_tables();

/// Weights of one (quad, half): inputs 4 * quad, + 1 in pair0 and + 2, + 3 in pair1, 16 outputs each.
struct Pairs {
  __m512i pair0, pair1;
};

// Sources of weights for multiply_rows: where the pairs and the scales of a block come from.

/// Decoded by decode_panel, or bf16 weights as they are.
struct PanelSource {
  const uint16_t* panel;
  const float* scales;

  [[gnu::always_inline]] Pairs pairs(int64_t group, int quad, int half) const {
    const uint16_t* p = panel + group * kBlockElements + (quad * 2 + half) * 64;
    return {_mm512_loadu_si512(p), _mm512_loadu_si512(p + 32)};
  }
  [[gnu::always_inline]] __m512 scale(int64_t group, int half) const {
    return _mm512_loadu_ps(scales + group * kTileOut + half * 16);
  }
};

struct Fp8Source {
  const uint8_t* codes;
  const uint8_t* scales;
  __m512i low0 = _mm512_load_si512(kTables.e4m3_low);
  __m512i low1 = _mm512_load_si512(kTables.e4m3_low + 64);
  __m512i high0 = _mm512_load_si512(kTables.e4m3_high);
  __m512i high1 = _mm512_load_si512(kTables.e4m3_high + 64);
  __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));

  [[gnu::always_inline]] Pairs pairs(int64_t group, int quad, int half) const {
    const __m512i code =
        _mm512_loadu_si512(codes + group * kBlockElements + (quad * 2 + half) * 64);
    const __m512i low = _mm512_permutex2var_epi8(low0, code, low1);  // looks at 7 bits of the code
    __m512i high = _mm512_permutex2var_epi8(high0, code, high1);
    high = _mm512_ternarylogic_epi32(high, code, sign, 0xf8);  // high | (code & sign)
    return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
  }
  [[gnu::always_inline]] __m512 scale(int64_t group, int) const {
    return reinterpret_cast<__m512>(e8m0_bits(splat_bits(scales[group])));
  }
};

struct Fp4Source {
  const uint8_t* codes;
  const uint8_t* scales;
  __m512i values = _mm512_load_si512(kTables.e2m1);

  [[gnu::always_inline]] Pairs pairs(int64_t group, int quad, int half) const {
    __m512i word = _mm512_loadu_si512(codes + (group * kBlockElements + quad * 128) / 2);
    if (half == 1) word = _mm512_srli_epi16(word, 8);
    return {_mm512_permutexvar_epi16(word, values),
            _mm512_permutexvar_epi16(_mm512_srli_epi16(word, 4), values)};
  }
  [[gnu::always_inline]] __m512 scale(int64_t group, int half) const {
    const __m128i bytes = load<__m128i>(scales + group * kTileOut + half * 16);
    return reinterpret_cast<__m512>(e8m0_bits(reinterpret_cast<VecU>(_mm512_cvtepu8_epi32(bytes))));
  }
};

template <class Source>
void decode(const Source& source, int64_t groups, uint16_t* panel) {
  for (int64_t group = 0; group < groups; ++group) {
#pragma GCC unroll 8
    for (int quad = 0; quad < 8; ++quad) {
      for (int half = 0; half < 2; ++half) {
        const Pairs w = source.pairs(group, quad, half);
        uint16_t* out = panel + group * kBlockElements + (quad * 2 + half) * 64;
        _mm512_store_si512(out, w.pair0);
        _mm512_store_si512(out + 32, w.pair1);
      }
    }
  }
}

const void* decode_panel(WeightFormat format, const uint8_t* codes, const uint8_t* scales,
                         int64_t groups, void* scratch, float* panel_scales) {
  decode_scales(format, scales, groups, 1.0f, panel_scales);
  uint16_t* panel = static_cast<uint16_t*>(scratch);
  switch (format) {
    case WeightFormat::bf16:
    case WeightFormat::f32: return codes;
    case WeightFormat::fp8_block32: decode(Fp8Source{codes, scales}, groups, panel); break;
    case WeightFormat::fp4_group32: decode(Fp4Source{codes, scales}, groups, panel); break;
  }
  return panel;
}

/// What a multiply brings into the caches on the way, because the next one will read it.
struct Ahead {
  const uint16_t* const* x = nullptr;  // kRows pointers, as this multiply's own; or null
  const uint8_t* codes = nullptr;
  int64_t lines_per_group = 0;  // of codes
};

/// kRows x 32 outputs: per group a fresh sum in registers, then scaled and added to acc, which stays in the L1
/// cache. Keeping acc in registers too would leave room for 6 rows, whose 12 sums do not cover the latency of
/// vdpbf16ps: 91 % of the peak instead of 98 %.
template <int kRows, class Source>
void multiply_rows(const Source source, int64_t groups, const uint16_t* const* x, int64_t x_offset,
                   float* acc, Ahead ahead) {
  const uint16_t* in[kRows];
  for (int m = 0; m < kRows; ++m) in[m] = x[m] + x_offset;
  for (int64_t group = 0; group < groups; ++group) {
    if (ahead.x != nullptr) {  // a group of a row is one cache line
      for (int m = 0; m < kRows; ++m) {
        _mm_prefetch(ahead.x[m] + x_offset + group * kGroupIn, _MM_HINT_T0);
      }
    }
    for (int64_t i = 0; i < ahead.lines_per_group; ++i, ahead.codes += 64) {
      _mm_prefetch(ahead.codes, _MM_HINT_T1);
    }
    __m512 partial[kRows][2];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) partial[m][0] = partial[m][1] = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int quad = 0; quad < 8; ++quad) {
      const Pairs w0 = source.pairs(group, quad, 0);
      const Pairs w1 = source.pairs(group, quad, 1);
#pragma GCC unroll 2
      for (int pair = 0; pair < 2; ++pair) {
        const auto half0 = reinterpret_cast<__m512bh>(pair == 0 ? w0.pair0 : w0.pair1);
        const auto half1 = reinterpret_cast<__m512bh>(pair == 0 ? w1.pair0 : w1.pair1);
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) {
          int two;
          std::memcpy(&two, in[m] + group * kGroupIn + quad * 4 + pair * 2, sizeof two);
          const auto inputs = reinterpret_cast<__m512bh>(_mm512_set1_epi32(two));
          partial[m][0] = _mm512_dpbf16_ps(partial[m][0], half0, inputs);
          partial[m][1] = _mm512_dpbf16_ps(partial[m][1], half1, inputs);
        }
      }
    }
    const __m512 scale0 = source.scale(group, 0);
    const __m512 scale1 = source.scale(group, 1);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      float* out = acc + m * kTileOut;
      _mm512_storeu_ps(out, _mm512_fmadd_ps(partial[m][0], scale0, _mm512_loadu_ps(out)));
      _mm512_storeu_ps(out + 16, _mm512_fmadd_ps(partial[m][1], scale1, _mm512_loadu_ps(out + 16)));
    }
  }
}

void multiply(WeightFormat format, const void* panel, const float* panel_scales, int64_t groups,
              const uint16_t* const* x, int64_t x_offset, int64_t rows, float* acc,
              const uint8_t* next_codes, int64_t next_bytes) {
  if (format == WeightFormat::f32) {
    multiply_f32(static_cast<const float*>(panel), panel_scales, groups, x, x_offset, rows, acc);
    return;
  }
  constexpr int64_t kMost = 8;
  const PanelSource source{static_cast<const uint16_t*>(panel), panel_scales};
  const int64_t passes = (rows + kMost - 1) / kMost;
  Ahead ahead;
  ahead.codes = next_codes;
  // Fewer rows read so fast that the processor's own prefetching is ahead of this one.
  if (rows > 4) ahead.lines_per_group = (next_bytes / 64 + passes * groups - 1) / (passes * groups);
  int64_t row = 0;
  for (; row + kMost <= rows; row += kMost) {
    ahead.x = row + 2 * kMost <= rows ? x + row + kMost : nullptr;
    multiply_rows<kMost>(source, groups, x + row, x_offset, acc + row * kTileOut, ahead);
    ahead.codes += ahead.lines_per_group * groups * 64;
  }
  x += row;
  acc += row * kTileOut;
  ahead.x = nullptr;
  switch (rows - row) {
    case 1: multiply_rows<1>(source, groups, x, x_offset, acc, ahead); break;
    case 2: multiply_rows<2>(source, groups, x, x_offset, acc, ahead); break;
    case 3: multiply_rows<3>(source, groups, x, x_offset, acc, ahead); break;
    case 4: multiply_rows<4>(source, groups, x, x_offset, acc, ahead); break;
    case 5: multiply_rows<5>(source, groups, x, x_offset, acc, ahead); break;
    case 6: multiply_rows<6>(source, groups, x, x_offset, acc, ahead); break;
    case 7: multiply_rows<7>(source, groups, x, x_offset, acc, ahead); break;
    default: break;
  }
}

template <class Source>
bool multiply_few(const Source& source, int64_t groups, const uint16_t* const* x, int64_t rows,
                  float* acc, Ahead ahead) {
  switch (rows) {
    case 1: multiply_rows<1>(source, groups, x, 0, acc, ahead); return true;
    case 2: multiply_rows<2>(source, groups, x, 0, acc, ahead); return true;
    case 3: multiply_rows<3>(source, groups, x, 0, acc, ahead); return true;
    case 4: multiply_rows<4>(source, groups, x, 0, acc, ahead); return true;
    case 5: multiply_rows<5>(source, groups, x, 0, acc, ahead); return true;
    case 6: multiply_rows<6>(source, groups, x, 0, acc, ahead); return true;
    case 7: multiply_rows<7>(source, groups, x, 0, acc, ahead); return true;
    default: return false;  // 8 rows' sums leave too few registers for decoding
  }
}

bool multiply_codes(WeightFormat format, const uint8_t* codes, const uint8_t* scales,
                    int64_t groups, const uint16_t* const* x, int64_t rows, float* acc) {
  Ahead ahead;
  switch (format) {
    case WeightFormat::fp8_block32:
      return multiply_few(Fp8Source{codes, scales}, groups, x, rows, acc, {});
    case WeightFormat::fp4_group32:
      // A line of FP4 keeps the core so busy that it looks less far ahead than memory is away: one row from memory
      // reads 26 GB/s without this and 33 with it. FP8 loses in the cache what it would gain from memory.
      ahead.codes = codes + 4096;
      ahead.lines_per_group = kBlockElements / 2 / 64;
      return multiply_few(Fp4Source{codes, scales}, groups, x, rows, acc, ahead);
    default: return false;
  }
}

/// Largest of 32 unsigned words.
inline uint32_t largest_word(__m512i v) {
  const __m256i by16 =
      _mm256_max_epu16(_mm512_castsi512_si256(v), _mm512_maskz_extracti64x4_epi64(0xff, v, 1));
  const __m128i by8 =
      _mm_max_epu16(_mm256_castsi256_si128(by16), _mm256_extracti128_si256(by16, 1));
  // There is an instruction for the smallest of 8 words only.
  const __m128i smallest = _mm_minpos_epu16(_mm_xor_si128(by8, _mm_set1_epi16(-1)));
  return 0xffffu & ~static_cast<uint32_t>(_mm_cvtsi128_si32(smallest));
}

/// E4M3 codes of 32 bf16 magnitudes |x / s| <= 448, in words: as e4m3_codes does it, on bf16's own bits.
inline __m512i e4m3_words(__m512i y) {
  const __m512i one = _mm512_set1_epi16(1);
  // Normal: round the mantissa from 7 to 3 bits, then move the exponent's bias from 127 to 7.
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(y, 4), one);
  const __m512i rounded = _mm512_add_epi16(_mm512_add_epi16(y, _mm512_set1_epi16(7)), odd);
  const __m512i normal =
      _mm512_sub_epi16(_mm512_srli_epi16(rounded, 4), _mm512_set1_epi16(120 << 3));
  // Below 2^-6 the code counts 2^-9: the mantissa with its leading one, shifted to 8 fraction bits. Shifts beyond 8
  // lose bits only of what rounds to zero anyway.
  const __m512i mantissa = _mm512_ternarylogic_epi32(
      y, _mm512_set1_epi16(0x7f), _mm512_set1_epi16(0x80), 0xea);  // (y & 7f) | 80
  const __m512i shift = _mm512_sub_epi16(_mm512_set1_epi16(125), _mm512_srli_epi16(y, 7));
  const __m512i fixed = _mm512_srlv_epi16(_mm512_slli_epi16(mantissa, 8), shift);
  const __m512i fixed_odd = _mm512_and_si512(_mm512_srli_epi16(fixed, 8), one);
  const __m512i subnormal = _mm512_srli_epi16(
      _mm512_add_epi16(_mm512_add_epi16(fixed, _mm512_set1_epi16(0x7f)), fixed_odd), 8);
  const __mmask32 small = _mm512_cmplt_epu16_mask(y, _mm512_set1_epi16(0x3c80));
  // A mantissa that rounds up beyond 448 saturates.
  return _mm512_min_epu16(_mm512_mask_mov_epi16(normal, small, subnormal), _mm512_set1_epi16(0x7e));
}

/// As quantize_q8_row of every instruction set, 32 elements in one register: dividing by a power of two is a
/// subtraction on the exponent.
void quantize_q8_words(const uint16_t* x, int64_t columns, uint8_t* codes, uint8_t* scales) {
  for (int64_t group = 0; group < columns / kGroupIn; ++group) {
    const __m512i in = _mm512_loadu_si512(x + group * kGroupIn);
    const __m512i magnitude = _mm512_and_si512(in, _mm512_set1_epi16(0x7fff));
    const uint32_t largest = largest_word(magnitude);
    if (largest >= 0x7f80) {  // infinity or NaN
      quantize_q8_row(x + group * kGroupIn, kGroupIn, codes + group * kGroupIn, scales + group);
      continue;
    }
    const uint32_t byte = q8_scale_byte(largest << 16);
    scales[group] = static_cast<uint8_t>(byte);
    // Exponent + 127 - byte; what would fall below zero is far below the smallest code.
    const __m512i y = _mm512_subs_epu16(_mm512_add_epi16(magnitude, _mm512_set1_epi16(127 << 7)),
                                        _mm512_set1_epi16(static_cast<int16_t>(byte << 7)));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi16(in, 8), _mm512_set1_epi16(0x80));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + group * kGroupIn),
                        _mm512_cvtepi16_epi8(_mm512_or_si512(e4m3_words(y), sign)));
  }
}

constexpr IsaKernels kKernels = {decode_panel,      multiply,      multiply_codes,
                                 quantize_q8_words, widen_q8_row,  store_bf16_tile,
                                 add_rounded_tile,  gated_q8_tile, route_scores_row};

}  // namespace

const IsaKernels& isa_kernels_avx512() { return kKernels; }

}  // namespace cedar::kernels::cpu
