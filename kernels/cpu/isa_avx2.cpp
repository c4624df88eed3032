// IsaKernels for AVX2 + FMA + F16C: 256-bit fp32 vectors.

#include <immintrin.h>

#include <cstdint>

namespace cedar::kernels::cpu {
namespace {
constexpr int kLanes = 8;
[[gnu::always_inline]] inline __m256 fused_or_plain(__m256 a, __m256 b, __m256 c) {
  return _mm256_fmadd_ps(a, b, c);
}
[[gnu::always_inline]] inline __m256i widen_u16(const uint16_t* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
[[gnu::always_inline]] inline __m256 square_root(__m256 x) { return _mm256_sqrt_ps(x); }
}  // namespace
}  // namespace cedar::kernels::cpu

#include "kernels/cpu/isa_body.h"

namespace cedar::kernels::cpu {
namespace {

/// 16-bit floats to 16 floats in two pieces of a panel.
inline void put_halves(__m256i half_floats, float* first, float* second) {
  _mm256_storeu_ps(first, _mm256_cvtph_ps(_mm256_castsi256_si128(half_floats)));
  _mm256_storeu_ps(second, _mm256_cvtph_ps(_mm256_extracti128_si256(half_floats, 1)));
}

/// The panel holds the values divided by 2^8: an E4M3 code's bits, moved to their places in a 16-bit float, are that
/// (the exponent biases are 7 and 15), subnormals included.
constexpr float kFp8PanelScale = 256.0f;

void decode_fp8_block(const uint8_t* codes, float* panel) {
  const __m256i places = _mm256_set1_epi16(static_cast<int16_t>(0xbf80));
  for (int part = 0; part < 16; ++part) {  // (quad, half): 64 codes
    for (int lane = 0; lane < 4; ++lane) {
      // Sign extension puts the sign where the shift moves it to bit 15.
      const __m256i wide = _mm256_cvtepi8_epi16(load<__m128i>(codes + part * 64 + lane * 16));
      float* out = panel + part * 64 + lane * 8;
      put_halves(_mm256_and_si256(_mm256_slli_epi16(wide, 7), places), out, out + 32);
    }
  }
}

void decode_fp4_block(const uint8_t* codes, float* panel) {
  // The high byte of each code's 16-bit float; the low byte is 0.
  const __m128i high_bytes = _mm_setr_epi8(0, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46,  //
                                           -0x80, -0x48, -0x44, -0x42, -0x40, -0x3e, -0x3c, -0x3a);
  const __m128i nibble = _mm_set1_epi8(15);
  // Bytes of half 0 (even) to the lower, of half 1 (odd) to the upper eight.
  const __m128i by_half = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  for (int quad = 0; quad < 8; ++quad) {
    for (int i = 0; i < 32; i += 8) {
      const __m128i packed = _mm_shuffle_epi8(load<__m128i>(codes + quad * 64 + i * 2), by_half);
      const __m128i pair0 = _mm_shuffle_epi8(high_bytes, _mm_and_si128(packed, nibble));
      const __m128i pair1 =
          _mm_shuffle_epi8(high_bytes, _mm_and_si128(_mm_srli_epi16(packed, 4), nibble));
      float* out = panel + quad * 128 + i;
      put_halves(_mm256_slli_epi16(_mm256_cvtepu8_epi16(pair0), 8), out, out + 64);
      put_halves(_mm256_slli_epi16(_mm256_cvtepu8_epi16(pair1), 8), out + 32, out + 96);
    }
  }
}

const void* decode_panel(WeightFormat format, const uint8_t* codes, const uint8_t* scales,
                         int64_t groups, void* scratch, float* panel_scales) {
  decode_scales(format, scales, groups, kFp8PanelScale, panel_scales);
  if (format == WeightFormat::f32) return codes;
  float* panel = static_cast<float*>(scratch);
  for (int64_t g = 0; g < groups; ++g) {
    float* out = panel + g * kBlockElements;
    switch (format) {
      case WeightFormat::bf16:
        widen_bf16_block(reinterpret_cast<const uint16_t*>(codes) + g * kBlockElements, out);
        break;
      case WeightFormat::fp8_block32: decode_fp8_block(codes + g * kBlockElements, out); break;
      case WeightFormat::fp4_group32: decode_fp4_block(codes + g * kBlockElements / 2, out); break;
      case WeightFormat::f32: break;
    }
  }
  return panel;
}

void multiply(WeightFormat, const void* panel, const float* panel_scales, int64_t groups,
              const uint16_t* const* x, int64_t x_offset, int64_t rows, float* acc, const uint8_t*,
              int64_t) {
  multiply_f32(static_cast<const float*>(panel), panel_scales, groups, x, x_offset, rows, acc);
}

constexpr IsaKernels kKernels = {decode_panel,     multiply,      nullptr,
                                 quantize_q8_row,  widen_q8_row,  store_bf16_tile,
                                 add_rounded_tile, gated_q8_tile, route_scores_row};

}  // namespace

const IsaKernels& isa_kernels_avx2() { return kKernels; }

}  // namespace cedar::kernels::cpu
