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
}  // namespace
}  // namespace cedar::kernels::cpu

#include "kernels/cpu/isa_body.h"

namespace cedar::kernels::cpu {
namespace {

/// The two bytes of the bf16 value of each code's magnitude.
struct alignas(64) Tables {
  uint8_t e4m3_low[128];
  uint8_t e4m3_high[128];
  uint8_t e2m1_low[16];
  uint8_t e2m1_high[16];
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
  for (int i = 0; i < 16; ++i) {
    const int bf16 = kE2m1[i & 7] | (i >= 8 ? 0x8000 : 0);
    t.e2m1_low[i] = static_cast<uint8_t>(bf16 & 255);
    t.e2m1_high[i] = static_cast<uint8_t>(bf16 >> 8);
  }
  return t;
}

constexpr Tables kTables = make_tables();

void decode_fp8(const uint8_t* codes, int64_t groups, uint16_t* panel) {
  const __m512i low0 = _mm512_load_si512(kTables.e4m3_low);
  const __m512i low1 = _mm512_load_si512(kTables.e4m3_low + 64);
  const __m512i high0 = _mm512_load_si512(kTables.e4m3_high);
  const __m512i high1 = _mm512_load_si512(kTables.e4m3_high + 64);
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  for (int64_t i = 0; i < groups * kBlockElements; i += 64) {
    const __m512i code = _mm512_loadu_si512(codes + i);
    const __m512i low = _mm512_permutex2var_epi8(low0, code, low1);  // looks at 7 bits of the code
    __m512i high = _mm512_permutex2var_epi8(high0, code, high1);
    high = _mm512_ternarylogic_epi32(high, code, sign, 0xf8);  // high | (code & sign)
    _mm512_store_si512(panel + i, _mm512_unpacklo_epi8(low, high));
    _mm512_store_si512(panel + i + 32, _mm512_unpackhi_epi8(low, high));
  }
}

void decode_fp4(const uint8_t* codes, int64_t groups, uint16_t* panel) {
  const __m512i low = _mm512_broadcast_i32x4(load<__m128i>(kTables.e2m1_low));
  const __m512i high = _mm512_broadcast_i32x4(load<__m128i>(kTables.e2m1_high));
  const __m512i nibble = _mm512_set1_epi8(15);
  for (int64_t i = 0; i < groups * kBlockElements; i += 128) {
    const __m512i packed = _mm512_loadu_si512(codes + i / 2);
    const __m512i first = _mm512_and_si512(packed, nibble);
    const __m512i second = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
    const __m512i first_low = _mm512_shuffle_epi8(low, first);
    const __m512i first_high = _mm512_shuffle_epi8(high, first);
    const __m512i second_low = _mm512_shuffle_epi8(low, second);
    const __m512i second_high = _mm512_shuffle_epi8(high, second);
    _mm512_store_si512(panel + i, _mm512_unpacklo_epi8(first_low, first_high));
    _mm512_store_si512(panel + i + 32, _mm512_unpackhi_epi8(first_low, first_high));
    _mm512_store_si512(panel + i + 64, _mm512_unpacklo_epi8(second_low, second_high));
    _mm512_store_si512(panel + i + 96, _mm512_unpackhi_epi8(second_low, second_high));
  }
}

const void* decode_panel(WeightFormat format, const uint8_t* codes, const uint8_t* scales,
                         int64_t groups, void* scratch, float* panel_scales) {
  decode_scales(format, scales, groups, panel_scales);
  uint16_t* panel = static_cast<uint16_t*>(scratch);
  switch (format) {
    case WeightFormat::bf16:
    case WeightFormat::f32: return codes;
    case WeightFormat::fp8_block32: decode_fp8(codes, groups, panel); break;
    case WeightFormat::fp4_group32: decode_fp4(codes, groups, panel); break;
  }
  return panel;
}

/// kRows x 32 outputs in registers: per group a fresh sum, then scaled and added to the running one.
template <int kRows>
void multiply_bf16_rows(const uint16_t* panel, const float* panel_scales, int64_t groups,
                        const uint16_t* const* x, int64_t x_offset, float* acc) {
  __m512 total[kRows][2];
  const uint16_t* in[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    in[m] = x[m] + x_offset;
    total[m][0] = _mm512_loadu_ps(acc + m * kTileOut);
    total[m][1] = _mm512_loadu_ps(acc + m * kTileOut + 16);
  }
  for (int64_t group = 0; group < groups; ++group) {
    __m512 partial[kRows][2];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) partial[m][0] = partial[m][1] = _mm512_setzero_ps();
    const uint16_t* block = panel + group * kBlockElements;
#pragma GCC unroll 16
    for (int step = 0; step < 16; ++step) {  // inputs 2 * step, 2 * step + 1
      const int at = (step / 2) * 128 + (step % 2) * 32;
      const auto w0 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(block + at));
      const auto w1 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(block + at + 64));
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        int pair;
        std::memcpy(&pair, in[m] + group * kGroupIn + step * 2, sizeof pair);
        const auto inputs = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        partial[m][0] = _mm512_dpbf16_ps(partial[m][0], w0, inputs);
        partial[m][1] = _mm512_dpbf16_ps(partial[m][1], w1, inputs);
      }
    }
    const __m512 scale0 = _mm512_loadu_ps(panel_scales + group * kTileOut);
    const __m512 scale1 = _mm512_loadu_ps(panel_scales + group * kTileOut + 16);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      total[m][0] = _mm512_fmadd_ps(partial[m][0], scale0, total[m][0]);
      total[m][1] = _mm512_fmadd_ps(partial[m][1], scale1, total[m][1]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    _mm512_storeu_ps(acc + m * kTileOut, total[m][0]);
    _mm512_storeu_ps(acc + m * kTileOut + 16, total[m][1]);
  }
}

void multiply(WeightFormat format, const void* panel, const float* panel_scales, int64_t groups,
              const uint16_t* const* x, int64_t x_offset, int64_t rows, float* acc) {
  if (format == WeightFormat::f32) {
    multiply_f32(static_cast<const float*>(panel), panel_scales, groups, x, x_offset, rows, acc);
    return;
  }
  // 6 rows: 12 sums cover the latency of vdpbf16ps, and with the 12 totals they fill the 32 registers.
  constexpr int64_t kMost = 6;
  const uint16_t* block = static_cast<const uint16_t*>(panel);
  int64_t row = 0;
  for (; row + kMost <= rows; row += kMost) {
    multiply_bf16_rows<kMost>(block, panel_scales, groups, x + row, x_offset, acc + row * kTileOut);
  }
  x += row;
  acc += row * kTileOut;
  switch (rows - row) {
    case 1: multiply_bf16_rows<1>(block, panel_scales, groups, x, x_offset, acc); break;
    case 2: multiply_bf16_rows<2>(block, panel_scales, groups, x, x_offset, acc); break;
    case 3: multiply_bf16_rows<3>(block, panel_scales, groups, x, x_offset, acc); break;
    case 4: multiply_bf16_rows<4>(block, panel_scales, groups, x, x_offset, acc); break;
    case 5: multiply_bf16_rows<5>(block, panel_scales, groups, x, x_offset, acc); break;
    default: break;
  }
}

constexpr IsaKernels kKernels = {decode_panel,    multiply,         quantize_q8_row, widen_q8_row,
                                 store_bf16_tile, add_rounded_tile, gated_q8_tile};

}  // namespace

const IsaKernels& isa_kernels_avx512() { return kKernels; }

}  // namespace cedar::kernels::cpu
