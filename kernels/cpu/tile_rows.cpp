#include "kernels/cpu/tile_rows.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace cedar::kernels::cpu {
namespace {

int64_t block_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::bf16: return kBlockElements * 2;
    case WeightFormat::f32: return kBlockElements * 4;
    case WeightFormat::fp8_block32: return kBlockElements;
    case WeightFormat::fp4_group32: return kBlockElements / 2;
  }
  return 0;
}

int64_t block_scale_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::fp8_block32: return 1;
    case WeightFormat::fp4_group32: return kTileOut;
    default: return 0;
  }
}

}  // namespace

void tile_rows(const IsaKernels& isa, const PackedWeight& weight, int64_t tile,
               std::span<const uint16_t* const> x, float* acc) {
  const auto rows = static_cast<int64_t>(x.size());
  CEDAR_DCHECK(rows <= kRowBlock);
  const int64_t groups = group_count(weight);
  const auto* codes = weight.codes.as<uint8_t>() + tile * groups * block_bytes(weight.format);
  const auto* scales =
      weight.scales.as<uint8_t>() + tile * groups * block_scale_bytes(weight.format);
  std::memset(acc, 0, static_cast<size_t>(rows * kTileOut) * sizeof *acc);
  if (isa.multiply_codes != nullptr &&
      isa.multiply_codes(weight.format, codes, scales, groups, x.data(), rows, acc)) {
    return;
  }
  alignas(64) float panel[kPanelGroups * kBlockElements];
  alignas(64) float panel_scales[kPanelGroups * kTileOut];
  for (int64_t group = 0; group < groups; group += kPanelGroups) {
    const int64_t count = std::min(kPanelGroups, groups - group);
    const void* decoded = isa.decode_panel(
        weight.format, codes + group * block_bytes(weight.format),
        scales + group * block_scale_bytes(weight.format), count, panel, panel_scales);
    const int64_t next = std::min(kPanelGroups, groups - group - count);
    isa.multiply(weight.format, decoded, panel_scales, count, x.data(), group * kGroupIn, rows, acc,
                 codes + (group + count) * block_bytes(weight.format),
                 next * block_bytes(weight.format));
  }
}

int64_t tile_grain(const PackedWeight& weight, int64_t rows) {
  // Measured on one core with AVX-512: decoding a block takes about 40 ns, a row's products with it 10 ns.
  constexpr int64_t kRangeNs = 8000;
  const int64_t tile_ns = group_count(weight) * (40 + 10 * rows);
  return std::max<int64_t>(1, kRangeNs / std::max<int64_t>(tile_ns, 1));
}

std::span<const uint16_t*> widen_rows(KernelContext& ctx, const IsaKernels& isa, const Q8Rows& xq,
                                      int64_t rows, int64_t columns) {
  const int64_t stride = spread_stride(columns);
  auto* wide = ctx.arena->allocate<uint16_t>(rows * stride);
  auto* pointers = ctx.arena->allocate<const uint16_t*>(rows);
  ctx.pool->parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      pointers[row] = wide + row * stride;
      isa.widen_q8(xq.codes + row * columns, xq.scales + row * (columns / kQ8Group), columns,
                   wide + row * stride);
    }
  });
  return {pointers, static_cast<size_t>(rows)};
}

}  // namespace cedar::kernels::cpu
