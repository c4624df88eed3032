#pragma once
// What products of many rows share: the order in which blocks take tiles, and how a tile of sums gets to y.

#include <cstdint>

#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/store_tile.h"

namespace cedar::kernels::cuda {

/// Tiles in the order in which blocks take them: those under way at a time form a rectangle of 8 tiles of rows, so that what
/// they read of x and W together fits the L2.
struct TileOrder {
  int row_tiles, output_tiles;

  __host__ __device__ int count() const { return row_tiles * output_tiles; }

  struct Place {
    int row_tile, output_tile;
  };
  __device__ __forceinline__ Place at(int index) const {
    constexpr int kBand = 8;
    const int band = index / (kBand * output_tiles), within = index % (kBand * output_tiles);
    const int band_rows = min(kBand, row_tiles - band * kBand);
    return {band * kBand + within % band_rows, within / band_rows};
  }
};

/// A tile of 64 outputs and 128 rows on its way to y through shared memory: sums lie in registers along the outputs, y
/// along the rows. Of one warpgroup, which synchronises through a barrier of its own.
class TileStore {
 public:
  static constexpr int kRows = 128, kOutputs = 64;
  static constexpr int kPitch =
      kOutputs * 2 + 16;  // padded: rows of eight lanes lie in different banks
  static constexpr int kBytes = kRows * kPitch;

  /// `shared`: kBytes on 16 bytes. `barrier`: named barrier of the warpgroup's.
  __device__ __forceinline__ TileStore(uint32_t shared, int barrier)
      : shared_(shared), barrier_(barrier) {}

  /// What store_tile() of 128 rows does, and the same numbers.
  __device__ __forceinline__ void store(const LinearOutput& out, const float (&sums)[64],
                                        float scale, int first_output, int outputs, int first_row,
                                        int rows) const {
    const bool by_pieces = !out.f32 && out.stride % 8 == 0 && outputs % 8 == 0 &&
                           reinterpret_cast<uintptr_t>(out.y) % 16 == 0;
    if (!by_pieces) {
      store_tile<16>(out, sums, scale, first_output, outputs, first_row, rows,
                     [](int) { return true; });
      return;
    }
    const int thread = threadIdx.x % 128, lane = threadIdx.x % 32, warp = thread / 32;
    // Lane l names row l % 8 of matrix l / 8: of eight rows of y, low and high outputs, then of the next eight.
    const uint32_t to =
        shared_ + (lane / 16 * 8 + lane % 8) * kPitch + warp * 32 + lane / 8 % 2 * 16;
    sync_warps(barrier_, 128);  // the tile before has been read
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pairs[i] = static_cast<uint32_t>(Bf16(sums[4 * j + 2 * i] * scale).bits) |
                   static_cast<uint32_t>(Bf16(sums[4 * j + 2 * i + 1] * scale).bits) << 16;
      }
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       to + j * 8 * kPitch),
                   "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                   : "memory");
    }
    sync_warps(barrier_, 128);
    const int piece = thread % 8, output = first_output + piece * 8;
    if (output >= outputs) return;
    auto* y = static_cast<Bf16*>(out.y) + output;
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      const int row = i * 16 + thread / 8;
      if (first_row + row >= rows) break;
      *reinterpret_cast<uint4*>(y + (first_row + row) * out.stride) =
          load_shared<uint4>(shared_ + row * kPitch + piece * 16);
    }
  }

 private:
  uint32_t shared_;
  int barrier_;
};

}  // namespace cedar::kernels::cuda
