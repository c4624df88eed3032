#pragma once
// What one instruction set has to provide; everything above it is written once. Plain types only, because the
// files that implement it are compiled with their own flags (see kernels/CMakeLists.txt). bf16 is uint16_t here.

#include <cstdint>

#include "kernels/weight_format.h"

namespace cedar::kernels {
enum class CpuIsa : uint8_t;
}  // namespace cedar::kernels

namespace cedar::kernels::cpu {

/// Groups decoded at once: a panel of 8 x 1024 elements stays in the L1 or L2 cache while rows pass over it.
constexpr int64_t kPanelGroups = 8;

struct IsaKernels {
  /// Turns `groups` <= kPanelGroups consecutive blocks of one tile into the element type that multiply takes,
  /// in panel order, and their scales into floats [groups, 32]. Returns the panel: `scratch` (64-byte
  /// aligned, room for kPanelGroups * 1024 floats), or `codes` where they can be used in place.
  const void* (*decode_panel)(WeightFormat format, const uint8_t* codes, const uint8_t* scales,
                              int64_t groups, void* scratch, float* panel_scales);

  /// acc[m][n] += sum over groups, increasing, of scale[n] * (sum of the group's 32 products), in fp32.
  /// Row m reads x[m][x_offset .. x_offset + groups * 32). acc [rows, 32]. A row's operations and their
  /// order do not depend on `rows`.
  void (*multiply)(WeightFormat format, const void* panel, const float* panel_scales,
                   int64_t groups, const uint16_t* const* x, int64_t x_offset, int64_t rows,
                   float* acc, const uint8_t* next_codes, int64_t next_bytes);

  /// For few rows: a whole tile without a panel, codes decoded in registers. The same sums as multiply's, bit
  /// for bit. False, and nothing done, where the panel is the better way. May be null.
  bool (*multiply_codes)(WeightFormat format, const uint8_t* codes, const uint8_t* scales,
                         int64_t groups, const uint16_t* const* x, int64_t rows, float* acc);

  /// One row, columns % 32 == 0 (spec/model.md 2.3, Q8).
  void (*quantize_q8)(const uint16_t* x, int64_t columns, uint8_t* codes, uint8_t* scales);
  /// bf16(code * scale), exact.
  void (*widen_q8)(const uint8_t* codes, const uint8_t* scales, int64_t columns, uint16_t* x);

  /// y[i] = bf16(acc[i]), i < count <= 32. acc has 32 elements.
  void (*store_bf16)(const float* acc, int64_t count, uint16_t* y);
  /// sum[i] += float(bf16(acc[i])), i < 32.
  void (*add_rounded)(const float* acc, float* sum);
  /// Between an expert's two linears, 32 columns: g = min(bf16(gate), clamp), u = bf16(up) clamped to
  /// +-clamp, out = Q8 round trip of bf16(silu(g) * u * weight).
  void (*gated_q8)(const float* gate, const float* up, float clamp, float weight, uint16_t* out);
  /// scores[i] = sqrt(softplus(gate[i])), softplus(v) = v for v > 20 else log1p(exp v). May be in place.
  void (*route_scores)(const float* gate, int64_t count, float* scores);
};

/// REQUIRES: cpu_supports(isa).
const IsaKernels& isa_kernels(CpuIsa isa);

const IsaKernels& isa_kernels_portable();
const IsaKernels& isa_kernels_avx2();
const IsaKernels& isa_kernels_avx512();

}  // namespace cedar::kernels::cpu
