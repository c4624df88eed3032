#pragma once
// The one loop that every linear of the CPU back end is made of: some rows times one tile of 32 outputs.

#include <cstdint>
#include <span>

#include "core/float_formats.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/tile_layout.h"
#include "kernels/kernel_context.h"
#include "kernels/quantize.h"
#include "kernels/weights.h"

namespace cedar::kernels::cpu {

inline uint16_t* bf16_bits(Bf16* x) { return reinterpret_cast<uint16_t*>(x); }
inline const uint16_t* bf16_bits(const Bf16* x) { return reinterpret_cast<const uint16_t*>(x); }

/// Rows that share one decoding of a panel: their sums (128 bytes each) live on the caller's stack.
constexpr int64_t kRowBlock = 96;

inline int64_t tile_count(const PackedWeight& weight) { return weight.out_padded / kTileOut; }
inline int64_t group_count(const PackedWeight& weight) {
  return (weight.in + kGroupIn - 1) / kGroupIn;
}

/// acc[m] = x[m] * tile^T for rows <= kRowBlock; acc [rows, 32] is overwritten. Every x[m] has
/// group_count * 32 readable elements, zeros beyond weight.in.
void tile_rows(const IsaKernels& isa, const PackedWeight& weight, int64_t tile,
               std::span<const uint16_t* const> x, float* acc);

/// Tiles a thread should take at once so that the pool's overhead (about 1 us) stays small.
int64_t tile_grain(const PackedWeight& weight, int64_t rows);

/// Elements between rows of bf16 scratch: an odd number of cache lines, so that the rows a multiply reads together
/// do not fall on the same sets of the L1 cache. REQUIRES: columns % 32 == 0.
inline int64_t spread_stride(int64_t columns) {
  return columns / kGroupIn % 2 == 0 ? columns + kGroupIn : columns;
}

/// Row pointers to Q8 rows dequantised into the context's arena. bf16(code * scale) is exact, so sums of
/// products of these values are the specification's scaled sums.
std::span<const uint16_t*> widen_rows(KernelContext& ctx, const IsaKernels& isa, const Q8Rows& xq,
                                      int64_t rows, int64_t columns);

}  // namespace cedar::kernels::cpu
