#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <vector>

#include "core/units.h"
#include "kernels/cpu/linear_ops.h"
#include "kernels/cpu/tile_layout.h"

namespace cedar::kernels::cpu {
namespace {

/// One output's codes and scales in the checkpoint; both null for the padding below the last output.
struct SourceRow {
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
};
using TileRows = std::array<SourceRow, kTileOut>;

int64_t row_bytes(WeightFormat format, int64_t in) {
  switch (format) {
    case WeightFormat::bf16: return in * 2;
    case WeightFormat::f32: return in * 4;
    case WeightFormat::fp8_block32: return in;
    case WeightFormat::fp4_group32: return in / 2;
  }
  return 0;
}

std::vector<SourceRow> source_rows(std::span<const WeightView> views, int64_t padded) {
  std::vector<SourceRow> rows;
  rows.reserve(static_cast<size_t>(padded));
  for (const WeightView& view : views) {
    const int64_t groups = ceil_div(view.in, kGroupIn);
    for (int64_t n = 0; n < view.out; ++n) {
      SourceRow row;
      row.codes = static_cast<const uint8_t*>(view.data) + n * row_bytes(view.format, view.in);
      if (view.format == WeightFormat::fp8_block32)
        row.scales = view.scales + n / kTileOut * groups;
      if (view.format == WeightFormat::fp4_group32) row.scales = view.scales + n * groups;
      rows.push_back(row);
    }
  }
  rows.resize(static_cast<size_t>(padded));
  return rows;
}

/// The group's bytes of one row, zero where the row or the weight ends.
template <int64_t kBytes>
std::array<uint8_t, kBytes> group_bytes(const SourceRow& row, int64_t group, int64_t total_bytes) {
  std::array<uint8_t, kBytes> bytes{};
  if (row.codes != nullptr) {
    const int64_t count = std::min(kBytes, total_bytes - group * kBytes);
    std::memcpy(bytes.data(), row.codes + group * kBytes, static_cast<size_t>(count));
  }
  return bytes;
}

/// bf16 (kSize 2) and f32 (kSize 4): pairs of inputs stay together.
template <int64_t kSize>
void pack_plain(const TileRows& rows, int64_t group, int64_t total_bytes, uint8_t* block) {
  for (int64_t n = 0; n < kTileOut; ++n) {
    const auto bytes =
        group_bytes<kGroupIn * kSize>(rows[static_cast<size_t>(n)], group, total_bytes);
    for (int64_t k = 0; k < kGroupIn; k += 2) {
      std::memcpy(block + panel_position(k, n) * kSize, bytes.data() + k * kSize, 2 * kSize);
    }
  }
}

/// False where a code is NaN.
bool pack_fp8(const TileRows& rows, int64_t group, int64_t total_bytes, uint8_t* block) {
  bool valid = true;
  for (int64_t n = 0; n < kTileOut; ++n) {
    const auto bytes = group_bytes<kGroupIn>(rows[static_cast<size_t>(n)], group, total_bytes);
    for (const uint8_t code : bytes) valid &= (code & 0x7f) != 0x7f;
    for (int64_t k = 0; k < kGroupIn; k += 2) {
      std::memcpy(block + fp8_position(k, n), bytes.data() + k, 2);
    }
  }
  return valid;
}

void pack_fp4(const TileRows& rows, int64_t group, int64_t total_bytes, uint8_t* block) {
  for (int64_t n = 0; n < kTileOut; ++n) {
    const auto bytes = group_bytes<kGroupIn / 2>(rows[static_cast<size_t>(n)], group, total_bytes);
    for (int64_t k = 0; k < kGroupIn;
         k += 4) {  // a quad: inputs k, k + 1 in `first`, the rest in `second`
      const uint8_t first = bytes[static_cast<size_t>(k / 2)];
      const uint8_t second = bytes[static_cast<size_t>(k / 2 + 1)];
      block[fp4_position(k, n) / 2] = static_cast<uint8_t>((first & 0x0f) | (second << 4));
      block[fp4_position(k + 1, n) / 2] = static_cast<uint8_t>((first >> 4) | (second & 0xf0));
    }
  }
}

/// Scales of one block; 127 (one) for padding. False where a scale is NaN.
bool pack_scales(const TileRows& rows, int64_t group, int64_t count, uint8_t* out) {
  bool valid = true;
  for (int64_t n = 0; n < count; ++n) {
    const SourceRow& row = rows[static_cast<size_t>(n)];
    out[n] = row.scales == nullptr ? uint8_t{127} : row.scales[group];
    valid &= out[n] != 255;
  }
  return valid;
}

}  // namespace

Result<PackedWeight> pack_weight(KernelContext& ctx, std::span<const WeightView> stacked) {
  PackedWeight packed;
  packed.format = stacked.front().format;
  packed.in = stacked.front().in;
  for (const WeightView& view : stacked) packed.out += view.out;
  packed.out_padded = align_up(packed.out, kTileOut);

  const int64_t groups = ceil_div(packed.in, kGroupIn);
  const int64_t tiles = packed.out_padded / kTileOut;
  const int64_t block_bytes = row_bytes(packed.format, kBlockElements);
  const int64_t scale_bytes = packed.format == WeightFormat::fp8_block32   ? 1
                              : packed.format == WeightFormat::fp4_group32 ? kTileOut
                                                                           : 0;
  CEDAR_TRY(packed.codes, Buffer::allocate(ctx.device, tiles * groups * block_bytes));
  CEDAR_TRY(packed.scales, Buffer::allocate(ctx.device, tiles * groups * scale_bytes));

  const std::vector<SourceRow> rows = source_rows(stacked, packed.out_padded);
  const int64_t total_bytes = row_bytes(packed.format, packed.in);
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> bad_tile{kNone};
  ctx.pool->parallel_for(tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      TileRows tile_rows;
      std::copy_n(rows.begin() + tile * kTileOut, kTileOut, tile_rows.begin());
      bool valid = true;
      for (int64_t group = 0; group < groups; ++group) {
        const int64_t at = tile * groups + group;
        uint8_t* block = packed.codes.as<uint8_t>() + at * block_bytes;
        switch (packed.format) {
          case WeightFormat::bf16: pack_plain<2>(tile_rows, group, total_bytes, block); break;
          case WeightFormat::f32: pack_plain<4>(tile_rows, group, total_bytes, block); break;
          case WeightFormat::fp8_block32:
            valid &= pack_fp8(tile_rows, group, total_bytes, block);
            break;
          case WeightFormat::fp4_group32: pack_fp4(tile_rows, group, total_bytes, block); break;
        }
        valid &= pack_scales(tile_rows, group, scale_bytes,
                             packed.scales.as<uint8_t>() + at * scale_bytes);
      }
      int64_t known = bad_tile.load();
      while (!valid && tile < known && !bad_tile.compare_exchange_weak(known, tile)) {
      }
    }
  });
  if (const int64_t tile = bad_tile.load(); tile != kNone) {
    return make_error(Errc::invalid_argument, "weight [" + std::to_string(packed.out) + ", " +
                                                  std::to_string(packed.in) +
                                                  "] has a NaN code or scale in outputs " +
                                                  std::to_string(tile * kTileOut) + " to " +
                                                  std::to_string((tile + 1) * kTileOut - 1));
  }
  return packed;
}

}  // namespace cedar::kernels::cpu
