// The part of IsaKernels that is the same text for every instruction set; compiled once per set, on vectors of
// kLanes floats. Not a public header: include vec.h's requirements first.

#pragma once

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/tile_layout.h"
#include "kernels/cpu/vec.h"

namespace cedar::kernels::cpu {
namespace {

constexpr float kReciprocal448 = 1.0f / 448.0f;
constexpr float kQ8Floor = 1e-4f;

/// E8M0 as float; NaN (255) is not expected. The maximum turns byte 0 into the subnormal 2^-127.
CEDAR_VEC VecU e8m0_bits(VecU byte) {
  const VecU shifted = byte << 23;
  const VecU smallest = splat_bits(0x00400000u);
  return shifted > smallest ? shifted : smallest;
}

// --- Q8 -------------------------------------------------------------------------------------------------

/// Codes in the low byte of each lane (spec/model.md 2.1: nearest even, saturating, NaN kept).
CEDAR_VEC VecU e4m3_codes(VecF x) {
  const VecU u = bits(x);
  const VecU magnitude = u & 0x7fffffffu;
  const VecU normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  // Below 2^-6 the grid is 2^-9: adding 2^14 makes that the float's last place.
  const VecU subnormal = bits(floats(magnitude) + 16384.0f) - 0x46800000u;
  VecU code = (magnitude < 0x3c800000u ? subnormal : normal);
  code = (magnitude >= 0x43e00000u ? splat_bits(0x7eu) : code);
  code = (magnitude > 0x7f800000u ? splat_bits(0x7fu) : code);
  return code | ((u >> 24) & 0x80u);
}

CEDAR_VEC VecF e4m3_values(VecU code) {
  const VecU magnitude = code & 0x7fu;
  const VecU normal = (magnitude << 20) + (120u << 23);
  const VecU subnormal =
      bits(__builtin_convertvector(reinterpret_cast<VecI>(magnitude), VecF) * 0.001953125f);
  VecU value = (magnitude < 8u ? subnormal : normal);
  value = (magnitude == 0x7fu ? splat_bits(0x7fc00000u) : value);
  return floats(value | ((code & 0x80u) << 24));
}

/// E8M0 byte of a group whose largest |x| has the float bits `magnitude`, which are finite.
CEDAR_VEC uint32_t q8_scale_byte(uint32_t magnitude) {
  float amax;
  std::memcpy(&amax, &magnitude, sizeof amax);
  const float t = (amax > kQ8Floor ? amax : kQ8Floor) * kReciprocal448;
  uint32_t u;
  std::memcpy(&u, &t, sizeof u);
  return (u >> 23) + ((u & 0x7fffffu) != 0 ? 1u : 0u);
}

/// E8M0 bytes of groups whose largest |x| have these float bits. Infinity and NaN give 255.
CEDAR_VEC VecU q8_scale_bytes(VecU magnitude) {
  const VecF amax = floats(magnitude) > kQ8Floor ? floats(magnitude) : splat(kQ8Floor);
  const VecU t = bits(amax * kReciprocal448);
  // A comparison is -1 where it holds.
  const VecU byte = (t >> 23) - reinterpret_cast<VecU>((t & 0x7fffffu) != 0u);
  return magnitude >= 0x7f800000u ? splat_bits(255) : byte;
}

void quantize_q8_row(const uint16_t* x, int64_t columns, uint8_t* codes, uint8_t* scales) {
  for (int64_t group = 0; group < columns / kGroupIn; ++group) {
    const uint16_t* in = x + group * kGroupIn;
    VecU largest = {};
    for (int i = 0; i < kGroupIn; i += kLanes) {
      const VecU magnitude = bits(load_bf16(in + i)) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    }
    // The same in every lane: the scale then needs no way through a scalar register.
    const VecU byte = q8_scale_bytes(largest_of_lanes(largest));
    scales[group] = static_cast<uint8_t>(byte[0]);
    // 1 / 2^(byte - 127); byte 255 gives NaN, and with it NaN codes.
    const VecF inverse = floats(byte == 255u ? splat_bits(0x7fc00000u) : (254u - byte) << 23);
    for (int i = 0; i < kGroupIn; i += kLanes) {
      const VecU code = e4m3_codes(load_bf16(in + i) * inverse);
      store(codes + group * kGroupIn + i, __builtin_convertvector(code, VecU8));
    }
  }
}

void widen_q8_row(const uint8_t* codes, const uint8_t* scales, int64_t columns, uint16_t* x) {
  for (int64_t group = 0; group < columns / kGroupIn; ++group) {
    const uint32_t byte = scales[group];
    const VecF scale = floats(byte == 255 ? splat_bits(0x7fc00000u) : e8m0_bits(splat_bits(byte)));
    for (int i = 0; i < kGroupIn; i += kLanes) {
      const int64_t at = group * kGroupIn + i;
      const VecU code = __builtin_convertvector(load<VecU8>(codes + at), VecU);
      store_as_bf16(x + at, e4m3_values(code) * scale);
    }
  }
}

// --- what happens to a tile's sums ------------------------------------------------------------------------

void store_bf16_tile(const float* acc, int64_t count, uint16_t* y) {
  uint16_t rounded[kTileOut];
  uint16_t* out = count == kTileOut ? y : rounded;
  for (int i = 0; i < kTileOut; i += kLanes) store_as_bf16(out + i, load<VecF>(acc + i));
  if (count != kTileOut) std::memcpy(y, rounded, static_cast<size_t>(count) * sizeof *y);
}

void add_rounded_tile(const float* acc, float* sum) {
  for (int i = 0; i < kTileOut; i += kLanes) {
    const VecF value = floats(rounded_to_bf16(load<VecF>(acc + i)));
    store(sum + i, load<VecF>(sum + i) + value);
  }
}

void gated_q8_tile(const float* gate, const float* up, float clamp, float weight, uint16_t* out) {
  static_assert(kTileOut == kGroupIn, "a tile of outputs is one quantiser group");
  uint16_t hidden[kTileOut];
  for (int i = 0; i < kTileOut; i += kLanes) {
    VecF g = floats(rounded_to_bf16(load<VecF>(gate + i)));
    VecF u = floats(rounded_to_bf16(load<VecF>(up + i)));
    g = (g > clamp ? splat(clamp) : g);
    u = (u > clamp ? splat(clamp) : u);
    u = (u < -clamp ? splat(-clamp) : u);
    const VecF silu = g / (1.0f + exp_approx(-g));
    store_as_bf16(hidden + i, silu * u * weight);
  }
  uint8_t codes[kGroupIn];
  uint8_t scale;
  quantize_q8_row(hidden, kGroupIn, codes, &scale);
  widen_q8_row(codes, &scale, kGroupIn, out);
}

// --- the router's scores ------------------------------------------------------------------------------------

/// log(1 + z), z >= 0, to about 3 ulp, also where 1 + z rounds to 1.
CEDAR_VEC VecF log1p_approx(VecF z) {
  const VecF u = 1.0f + z;
  // u = 2^k m, m in [sqrt(1/2), sqrt(2)): 0x3f3504f3 is sqrt(1/2).
  const VecU offset = bits(u) - 0x3f3504f3u;
  const VecF k = __builtin_convertvector(reinterpret_cast<VecI>(offset) >> 23, VecF);
  const VecF m = floats((offset & 0x7fffffu) + 0x3f3504f3u);
  // log m = 2 artanh(s): the series ends below 1e-8 of the result, |s| <= 0.172.
  const VecF s = (m - 1.0f) / (m + 1.0f);
  const VecF s2 = s * s;
  VecF series = splat(1.0f / 9.0f);
  series = fused_or_plain(series, s2, splat(1.0f / 7.0f));
  series = fused_or_plain(series, s2, splat(1.0f / 5.0f));
  series = fused_or_plain(series, s2, splat(1.0f / 3.0f));
  series = fused_or_plain(series, s2, splat(1.0f));
  const VecF log_u = fused_or_plain(k, splat(0.693147181f), 2.0f * s * series);
  // u lost low bits of z; the ratio of z to what u kept puts them back.
  return u == 1.0f ? z : log_u * (z / (u - 1.0f));
}

void route_scores_row(const float* gate, int64_t count, float* scores) {
  const auto score = [](VecF v) {
    return square_root(v > 20.0f ? v : log1p_approx(exp_approx(v)));
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(scores + i, VecF(score(load<VecF>(gate + i))));
  if (i == count) return;
  float rest[kLanes] = {};
  std::memcpy(rest, gate + i, static_cast<size_t>(count - i) * sizeof *gate);
  store(rest, VecF(score(load<VecF>(rest))));
  std::memcpy(scores + i, rest, static_cast<size_t>(count - i) * sizeof *gate);
}

// --- multiply in fp32 vectors -----------------------------------------------------------------------------

/// bf16 blocks to floats, same order.
CEDAR_VEC void widen_bf16_block(const uint16_t* block, float* panel) {
  for (int64_t i = 0; i < kBlockElements; i += kLanes) store(panel + i, load_bf16(block + i));
}

/// The scales of `groups` blocks as floats [groups, 32]; those of FP8 times `fp8_factor`, for panels that hold its
/// values divided by it.
CEDAR_VEC void decode_scales(WeightFormat format, const uint8_t* scales, int64_t groups,
                             float fp8_factor, float* out) {
  for (int64_t i = 0; i < groups * kTileOut; i += kLanes) {
    VecF value = splat(1.0f);
    if (format == WeightFormat::fp8_block32) {
      value = floats(e8m0_bits(splat_bits(scales[i / kTileOut]))) * fp8_factor;
    } else if (format == WeightFormat::fp4_group32) {
      value = floats(e8m0_bits(__builtin_convertvector(load<VecU8>(scales + i), VecU)));
    }
    store(out + i, value);
  }
}

/// Rows that pass over a loaded piece of the panel together, limited by the vector registers.
constexpr int kRowsAtOnce = kLanes == 4 ? 1 : 2;
constexpr int kHalfVecs = 32 / kLanes;  // vectors of one (quad, half, pair): 16 outputs x 2 inputs

template <int kRows>
CEDAR_VEC void multiply_f32_rows(const float* panel, const float* panel_scales, int64_t groups,
                                 const float* const* x, float* const* acc) {
  for (int64_t group = 0; group < groups; ++group) {
    for (int half = 0; half < 2; ++half) {
      VecF partial[kRows][kHalfVecs] = {};
      for (int step = 0; step < 16; ++step) {  // (quad, pair): inputs 2 * step, 2 * step + 1
        const float* w =
            panel + group * kBlockElements + (((step / 2) * 2 + half) * 2 + step % 2) * 32;
        for (int m = 0; m < kRows; ++m) {
          // Both inputs in one 64-bit lane, repeated: x0 x1 x0 x1 ...
          typedef uint64_t Pairs __attribute__((vector_size(4 * kLanes)));
          uint64_t pair;
          std::memcpy(&pair, x[m] + group * kGroupIn + step * 2, sizeof pair);
          const VecF inputs = reinterpret_cast<VecF>(pair - Pairs{});
          for (int v = 0; v < kHalfVecs; ++v) {
            partial[m][v] = fused_or_plain(load<VecF>(w + v * kLanes), inputs, partial[m][v]);
          }
        }
      }
      for (int m = 0; m < kRows; ++m) {
        for (int v = 0; v < kHalfVecs / 2; ++v) {
          const int64_t n = half * 16 + v * kLanes;
          const VecF scale = load<VecF>(panel_scales + group * kTileOut + n);
          const VecF sums = sums_of_pairs(partial[m][2 * v], partial[m][2 * v + 1]);
          store(acc[m] + n, VecF(fused_or_plain(sums, scale, load<VecF>(acc[m] + n))));
        }
      }
    }
  }
}

void multiply_f32(const float* panel, const float* panel_scales, int64_t groups,
                  const uint16_t* const* x, int64_t x_offset, int64_t rows, float* acc) {
  float inputs[kRowsAtOnce][kPanelGroups * kGroupIn];
  for (int64_t row = 0; row < rows; row += kRowsAtOnce) {
    const int64_t count = rows - row < kRowsAtOnce ? rows - row : kRowsAtOnce;
    const float* in[kRowsAtOnce];
    float* out[kRowsAtOnce];
    for (int m = 0; m < count; ++m) {
      const uint16_t* from = x[row + m] + x_offset;
      for (int64_t i = 0; i < groups * kGroupIn; i += kLanes) {
        store(inputs[m] + i, load_bf16(from + i));
      }
      in[m] = inputs[m];
      out[m] = acc + (row + m) * kTileOut;
    }
    if (count == kRowsAtOnce) {
      multiply_f32_rows<kRowsAtOnce>(panel, panel_scales, groups, in, out);
    } else {
      multiply_f32_rows<1>(panel, panel_scales, groups, in, out);
    }
  }
}

}  // namespace
}  // namespace cedar::kernels::cpu
