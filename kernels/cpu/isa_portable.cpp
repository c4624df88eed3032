// IsaKernels for any x86-64-v2 processor: 128-bit vectors, codes decoded by table.

#include <immintrin.h>

#include <cstdint>

namespace cedar::kernels::cpu {
namespace {
constexpr int kLanes = 4;
typedef float Lanes __attribute__((vector_size(4 * kLanes)));
[[gnu::always_inline]] inline Lanes fused_or_plain(Lanes a, Lanes b, Lanes c) { return a * b + c; }
[[gnu::always_inline]] inline __m128i widen_u16(const uint16_t* p) {
  return _mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
[[gnu::always_inline]] inline Lanes square_root(Lanes x) { return _mm_sqrt_ps(x); }
}  // namespace
}  // namespace cedar::kernels::cpu

#include "kernels/cpu/isa_body.h"

namespace cedar::kernels::cpu {
namespace {

struct Tables {
  float e4m3[256];
  float e2m1[16];
};

constexpr Tables make_tables() {
  Tables t{};
  constexpr float kE2m1[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (int i = 0; i < 8; ++i) {
    t.e2m1[i] = kE2m1[i];
    t.e2m1[i + 8] = -kE2m1[i];
  }
  for (int i = 0; i < 128; ++i) {
    const int exponent = i >> 3;
    float value = exponent == 0 ? static_cast<float>(i & 7) : static_cast<float>(8 + (i & 7));
    for (int e = exponent == 0 ? 1 : exponent; e > 10; --e) value *= 2.0f;
    for (int e = exponent == 0 ? 1 : exponent; e < 10; ++e) value *= 0.5f;
    if (i == 127) value = __builtin_nanf("");
    t.e4m3[i] = value;
    t.e4m3[i + 128] = -value;
  }
  return t;
}

constexpr Tables kTables = make_tables();

void decode_fp8_block(const uint8_t* codes, float* panel) {
  for (int part = 0; part < 16; ++part) {  // (quad, half): 64 codes
    for (int lane = 0; lane < 4; ++lane) {
      for (int pair = 0; pair < 2; ++pair) {
        for (int i = 0; i < 8; ++i) {
          panel[part * 64 + pair * 32 + lane * 8 + i] =
              kTables.e4m3[codes[part * 64 + lane * 16 + pair * 8 + i]];
        }
      }
    }
  }
}

void decode_fp4_block(const uint8_t* codes, float* panel) {
  for (int quad = 0; quad < 8; ++quad) {
    for (int i = 0; i < 32; ++i) {
      const uint8_t* word =
          codes + quad * 64 + i * 2;  // halves 0 and 1; a byte holds pairs 0 and 1
      float* out = panel + quad * 128 + i;
      out[0] = kTables.e2m1[word[0] & 15];
      out[32] = kTables.e2m1[word[0] >> 4];
      out[64] = kTables.e2m1[word[1] & 15];
      out[96] = kTables.e2m1[word[1] >> 4];
    }
  }
}

const void* decode_panel(WeightFormat format, const uint8_t* codes, const uint8_t* scales,
                         int64_t groups, void* scratch, float* panel_scales) {
  decode_scales(format, scales, groups, 1.0f, panel_scales);
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

const IsaKernels& isa_kernels_portable() { return kKernels; }

}  // namespace cedar::kernels::cpu
