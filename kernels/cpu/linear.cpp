#include "kernels/linear.h"

#include <algorithm>
#include <cstring>

#include "core/units.h"
#include "kernels/cpu/linear_ops.h"
#include "kernels/cpu/tile_rows.h"

namespace cedar::kernels::cpu {
namespace {

/// Row pointers for the formats that read bf16 activations. Rows are copied where a multiply could not read
/// whole groups, and where many rows would fall on the same sets of the L1 cache.
std::span<const uint16_t*> bf16_rows(KernelContext& ctx, const LinearParams& p) {
  const int64_t in = p.weight->in;
  auto* pointers = ctx.arena->allocate<const uint16_t*>(p.rows);
  const bool collide = p.rows >= 16 && p.x_stride * 2 % 4096 == 0;
  if (in % kGroupIn == 0 && !collide) {
    for (int64_t row = 0; row < p.rows; ++row) pointers[row] = bf16_bits(p.x + row * p.x_stride);
    return {pointers, static_cast<size_t>(p.rows)};
  }
  const int64_t stride = spread_stride(align_up(in, kGroupIn));
  auto* copies = ctx.arena->allocate<uint16_t>(p.rows * stride);
  ctx.pool->parallel_for(p.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      uint16_t* copy = copies + row * stride;
      std::memcpy(copy, p.x + row * p.x_stride, static_cast<size_t>(in) * sizeof *copy);
      std::memset(copy + in, 0, static_cast<size_t>(stride - in) * sizeof *copy);
      pointers[row] = copy;
    }
  });
  return {pointers, static_cast<size_t>(p.rows)};
}

}  // namespace

Status linear(KernelContext& ctx, const LinearParams& p) {
  const ArenaScope scope(*ctx.arena);
  const IsaKernels& isa = isa_kernels(ctx.isa);
  const PackedWeight& weight = *p.weight;
  const bool quantised =
      weight.format == WeightFormat::fp8_block32 || weight.format == WeightFormat::fp4_group32;
  const std::span<const uint16_t*> x =
      quantised ? widen_rows(ctx, isa, p.xq, p.rows, weight.in) : bf16_rows(ctx, p);

  const int64_t tiles = tile_count(weight);
  const int64_t row_blocks = ceil_div(p.rows, kRowBlock);
  const auto run = [&](int64_t begin, int64_t end) {
    alignas(64) float acc[kRowBlock * kTileOut];
    for (int64_t task = begin; task < end; ++task) {
      const int64_t tile = task % tiles;
      const int64_t first_row = task / tiles * kRowBlock;
      const int64_t rows = std::min(kRowBlock, p.rows - first_row);
      tile_rows(isa, weight, tile,
                x.subspan(static_cast<size_t>(first_row), static_cast<size_t>(rows)), acc);
      const int64_t column = tile * kTileOut;
      const int64_t count = std::min(kTileOut, weight.out - column);
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t at = (first_row + row) * p.y_stride + column;
        const float* sums = acc + row * kTileOut;
        if (p.y_dtype == DType::bf16) {
          isa.store_bf16(sums, count, static_cast<uint16_t*>(p.y) + at);
        } else {
          std::memcpy(static_cast<float*>(p.y) + at, sums,
                      static_cast<size_t>(count) * sizeof *sums);
        }
      }
    }
  };
  ctx.pool->parallel_for(tiles * row_blocks, tile_grain(weight, std::min(p.rows, kRowBlock)), run);
  return {};
}

}  // namespace cedar::kernels::cpu
