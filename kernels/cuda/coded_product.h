#pragma once
// The inner loop of every product with an FP8 or FP4 weight: sums[outputs, columns] += W x^T for one tile, columns
// being rows of x.
//
// W is the register operand of wgmma: each lane loads its own codes from global memory, decodes them to bf16 with
// their scale applied (exact: 4 significant bits times a power of two) and multiplies them with x, which all
// warpgroups of the block share in shared memory. Products are exact and the sums are fp32, inputs in increasing
// order, so a column's sums depend neither on the number of columns nor on the tile's shape.
//
// W is loaded kAhead stages (64 inputs each) ahead into registers; x comes through a RowRing.

#include <cstdint>

#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/decode.h"
#include "kernels/cuda/row_ring.h"
#include "kernels/cuda/weight_layout.h"
#include "kernels/cuda/wgmma.h"

namespace cedar::kernels::cuda {

/// Where one lane finds its codes and factors of a tile of 64 outputs.
struct CodedTile {
  const uint8_t* codes = nullptr;
  const uint8_t* factors = nullptr;
};

/// Tile `tile` (64 outputs) of a packed weight, as warp `warp` of the warpgroup and `lane` of the warp see it.
template <bool kFp4>
__device__ __forceinline__ CodedTile coded_tile(const uint8_t* codes, const uint8_t* factors,
                                                int64_t tile, int64_t stages, int warp, int lane) {
  const int64_t row = tile * 4 + warp;  // of 16 outputs
  CodedTile t;
  t.codes = codes + row * code_row_bytes(kFp4, stages) + lane * 16;
  t.factors = factors + (kFp4 ? row * factor_row_bytes(true, stages) + lane / 4 * 4
                              : row / 2 * factor_row_bytes(false, stages));
  return t;
}

/// One lane's part of a stage: 64 inputs of 16 outputs.
template <bool kFp4>
struct StageCodes {
  static constexpr int kLoads = kFp4 ? 1 : 2;
  uint4 codes[kLoads];
  uint32_t factors;

  /// A stage from `last` on counts as zero: its codes are those of the stage before, its factors zero.
  __device__ __forceinline__ void load(const CodedTile& tile, int stage, int last) {
    const int readable = min(stage, last - 1);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      codes[i] =
          load_stream(tile.codes + readable * int64_t{kLoads * kBlockBytes} + i * kBlockBytes);
    }
    if constexpr (kFp4) {
      factors = load_factors<uint32_t>(tile.factors + readable * int64_t{32});
    } else {
      factors = load_factors<uint16_t>(tile.factors + readable * int64_t{2});
    }
    factors = stage < last ? factors : 0;
  }

  /// Operands of the two products of half `kHalf` (32 inputs).
  template <int kHalf>
  __device__ __forceinline__ void decode(uint32_t (&a)[2][4]) const {
    if constexpr (kFp4) {
      const uint32_t low = kHalf == 0 ? codes[0].x : codes[0].z;
      const uint32_t high = kHalf == 0 ? codes[0].y : codes[0].w;
      uint32_t pairs[4];
      decode_fp4(low, factor_pair<2 * kHalf>(factors), pairs);
      a[0][0] = pairs[0], a[0][2] = pairs[1], a[1][0] = pairs[2], a[1][2] = pairs[3];
      decode_fp4(high, factor_pair<2 * kHalf + 1>(factors), pairs);
      a[0][1] = pairs[0], a[0][3] = pairs[1], a[1][1] = pairs[2], a[1][3] = pairs[3];
    } else {
      const uint4& block = codes[kHalf < kLoads ? kHalf : 0];
      const uint32_t factor = factor_pair<kHalf>(factors);
      decode_fp8(block.x, factor, a[0][0], a[0][2]);
      decode_fp8(block.y, factor, a[1][0], a[1][2]);
      decode_fp8(block.z, factor, a[0][1], a[0][3]);
      decode_fp8(block.w, factor, a[1][1], a[1][3]);
    }
  }
};

/// kColumns: rows of x in the tile (8 to 128). kTiles: tiles of 64 outputs a warpgroup. kWarpgroups: share x.
template <bool kFp4, int kColumns, int kTiles, int kWarpgroups, int kProducerWarps, int kDepth,
          int kRing, int kAhead = kDepth>
struct CodedProduct {
  static_assert(kDepth % kAhead == 0);
  using Ring = RowRing<kColumns, kDepth, kRing, kProducerWarps, 4 * kWarpgroups>;
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kThreads = kConsumers + 32 * kProducerWarps;
  using Sums = float[kTiles][kColumns / 2];

  /// By the consumers: stages [first, last) of inputs, as steps from `step` on. Columns whose row does not exist come out
  /// meaningless.
  static __device__ __forceinline__ void run(Sums& sums, const CodedTile (&tiles)[kTiles],
                                             int first, int last, const Ring& ring, int step) {
    const int steps = Ring::step_count(first, last);
    StageCodes<kFp4> ahead[kAhead][kTiles];
#pragma unroll
    for (int d = 0; d < kAhead; ++d) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) ahead[d][i].load(tiles[i], first + d, last);
    }
    for (int s = 0; s < steps; ++s) {
      ring.wait(step + s);
      const uint64_t x = tile_descriptor(ring.slot(step + s));
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        multiply(sums, ahead[d % kAhead], x + (d * Ring::kStageBytes >> 4), tiles,
                 first + s * kDepth + d + kAhead, last);
        // The products of the step before are done: multiply() waited for them.
        if (d == 0 && s > 0) ring.release(step + s - 1);
      }
    }
    wgmma_wait<0>();
    ring.release(step + steps - 1);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) settle(sums[i]);
  }

 private:
  /// One stage; its registers then take stage `next`. Loads, decoding and the products before overlap.
  static __device__ __forceinline__ void multiply(Sums& sums, StageCodes<kFp4> (&now)[kTiles],
                                                  uint64_t x, const CodedTile (&tiles)[kTiles],
                                                  int next, int last) {
    uint32_t a[2][kTiles][2][4];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) now[i].template decode<0>(a[0][i]);
    if constexpr (kTiles > 1) issue(sums, a[0], x);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      now[i].template decode<1>(a[1][i]);
      now[i].load(tiles[i], next, last);
    }
    if constexpr (kTiles > 1) {
      issue(sums, a[1], x + descriptor_step(2));
    } else {
      // Few registers a half: one group for both saves fences and waits.
      wgmma_fence();
      products(sums, a[0], x);
      products(sums, a[1], x + descriptor_step(2));
      wgmma_commit();
      wgmma_wait<1>();
    }
  }

  static __device__ __forceinline__ void products(Sums& sums, const uint32_t (&a)[kTiles][2][4],
                                                  uint64_t x) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        Wgmma<kColumns>::ra(sums[i], a[i][j], x + descriptor_step(j));
      }
    }
  }

  /// Waits for the group before: its operands' registers are free then.
  static __device__ __forceinline__ void issue(Sums& sums, const uint32_t (&a)[kTiles][2][4],
                                               uint64_t x) {
    wgmma_fence();
    products(sums, a, x);
    wgmma_commit();
    wgmma_wait<1>();
  }
};

}  // namespace cedar::kernels::cuda
