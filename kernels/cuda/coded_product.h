#pragma once
// The inner loop of every product with an FP8 or FP4 weight: sums[outputs, columns] += W x^T for one tile,
// columns being rows of x.
//
// W is the register operand of wgmma: each lane reads its own codes from the ring's slot, decodes them to
// bf16 with their scale applied (exact: 4 significant bits times a power of two) and multiplies them with x,
// which all warpgroups of the block share. Products are exact and the sums are fp32, inputs in increasing
// order, so a column's sums depend neither on the number of columns nor on the tile's shape.

#include <cstdint>
#include <type_traits>

#include <cuda.h>

#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/decode.h"
#include "kernels/cuda/tile_ring.h"
#include "kernels/cuda/weight_layout.h"
#include "kernels/cuda/wgmma.h"

namespace cedar::kernels::cuda {

/// One lane's part of a block: 64 inputs of its 2 outputs.
template <bool kFp4>
struct StageCodes {
  uint4 codes[kFp4 ? 1 : 2];
  uint32_t factors;

  /// `block`: in shared memory. A stage that is not `valid` counts as zero, whatever lies there.
  __device__ __forceinline__ void load(uint32_t block, bool valid) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    if constexpr (kFp4) {
      codes[0] = load_shared<uint4>(block + warp * 512 + lane * 16);
      factors = load_shared<uint32_t>(block + code_bytes(true) + warp * 32 + lane / 4 * 4);
    } else {
      codes[0] = load_shared<uint4>(block + warp * 1024 + lane * 16);
      codes[1] = load_shared<uint4>(block + warp * 1024 + 512 + lane * 16);
      factors = load_shared<uint16_t>(block + code_bytes(false) + warp / 2 * 2);
    }
    factors = valid ? factors : 0;
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
      constexpr int kBlock = kFp4 ? 0 : kHalf;
      const uint4& block = codes[kBlock];
      const uint32_t factor = factor_pair<kHalf>(factors);
      decode_fp8(block.x, factor, a[0][0], a[0][2]);
      decode_fp8(block.y, factor, a[1][0], a[1][2]);
      decode_fp8(block.z, factor, a[0][1], a[0][3]);
      decode_fp8(block.w, factor, a[1][1], a[1][3]);
    }
  }
};

/// For products whose x lies in memory before the launch.
struct XIsThere {
  __device__ void operator()() const {}
};

/// For products that start early: the launch before makes x.
struct LaunchBefore {
  __device__ void operator()() const { wait_for_launch_before(); }
};

/// kColumns: rows of x in the tile (8 to 128). kTiles: tiles of 64 outputs a warpgroup. kDepth: stages a
/// step.
template <bool kFp4, int kColumns, int kTiles, int kWarpgroups, int kDepth>
struct CodedProduct {
  using Sums = float[kTiles][kColumns / 2];

  static constexpr int kStageBytes = kColumns * 128;
  /// A step's bytes in the ring.
  static constexpr int kXBytes = kDepth * kStageBytes;
  static constexpr int kWeightBytes = kTiles * kWarpgroups * kDepth * block_bytes(kFp4);

  static __device__ __forceinline__ int step_count(int first, int last) {
    return (last - first + kDepth - 1) / kDepth;
  }

  /// By the producer: stages [first, last) of inputs, as steps from `step` on. Rows of x: kColumns of the
  /// map's, from x_row on. Tile i of the block's, i = warpgroup * kTiles + tile, begins at tile_at(i). A step
  /// that the stages do not fill reads x beyond them; the consumers multiply that with zero.
  /// `x_is_there`: waits until x may be read; the first steps' weights are asked for before.
  template <class Ring, class TileAt, class Wait>
  static __device__ __forceinline__ void produce(const Ring& ring, const CUtensorMap& x, int x_row,
                                                 const TileAt& tile_at, int first, int last,
                                                 int step, const Wait& x_is_there) {
    const auto copy_weights = [&](int stage, uint32_t to, uint32_t barrier) {
      const int run_bytes = min(kDepth, last - stage) * block_bytes(kFp4);
#pragma unroll
      for (int i = 0; i < kTiles * kWarpgroups; ++i) {
        copy_bulk(to + i * kDepth * block_bytes(kFp4),
                  tile_at(i) + stage * int64_t{block_bytes(kFp4)}, run_bytes, barrier);
      }
    };
    const auto copy_x = [&](int stage, uint32_t to, uint32_t barrier) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        copy_tensor(to + d * kStageBytes, &x, (stage + d) * kStage, x_row, barrier);
      }
    };
    const auto bytes = [&](int stage) {
      return kXBytes + kTiles * kWarpgroups * min(kDepth, last - stage) * block_bytes(kFp4);
    };
    int ahead = 0;
    // Where x is there, weights that come first would only delay it.
    if constexpr (!std::is_same_v<Wait, XIsThere>) {
      ahead = min(step_count(first, last), Ring::kSlots);
    }
    for (int s = 0; s < ahead; ++s) {
      const int stage = first + s * kDepth;
      ring.fill_weights(step + s, bytes(stage),
                        [&](uint32_t to, uint32_t barrier) { copy_weights(stage, to, barrier); });
    }
    x_is_there();
    for (int s = 0; s < ahead; ++s) {
      const int stage = first + s * kDepth;
      ring.fill_x(step + s, [&](uint32_t to, uint32_t barrier) { copy_x(stage, to, barrier); });
    }
    step += ahead;
    for (int stage = first + ahead * kDepth; stage < last; stage += kDepth, ++step) {
      ring.fill(step, bytes(stage), [&](uint32_t to_x, uint32_t to_weights, uint32_t barrier) {
        copy_weights(stage, to_weights, barrier);
        copy_x(stage, to_x, barrier);
      });
    }
  }

  /// By the consumers: stages [first, last) of inputs, as steps from `step` on. Columns whose row does not
  /// exist come out meaningless.
  template <class Ring>
  static __device__ __forceinline__ void run(Sums& sums, int first, int last, const Ring& ring,
                                             int step) {
    const int steps = step_count(first, last);
    const uint32_t own = threadIdx.x / 128 * (kTiles * kDepth * block_bytes(kFp4));
    Operands even = {}, odd = {};  // of the two halves of a stage
#pragma unroll
    for (int i = 0; i < kTiles; ++i) settle(sums[i]);
    for (int s = 0; s < steps; ++s) {
      ring.wait(step + s);
      const uint32_t blocks = ring.weights(step + s) + own;
      const uint64_t rows = tile_descriptor(ring.x(step + s));
      StageCodes<kFp4> now[kTiles];
      const auto load = [&](int d) {
        const bool valid = kDepth == 1 || first + s * kDepth + d < last;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          now[i].load(blocks + (i * kDepth + d) * block_bytes(kFp4), valid);
        }
      };
      load(0);
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const uint64_t x = rows + (d * kStageBytes >> 4);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) now[i].template decode<0>(even[i]);
        issue(sums, even, odd, x);
        // The products of the step before are done: issue() waited for them.
        if (d == 0 && s > 0) ring.release(step + s - 1);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) now[i].template decode<1>(odd[i]);
        if (d + 1 < kDepth) load(d + 1);
        issue(sums, odd, even, x + descriptor_step(2));
      }
    }
    wgmma_wait<0>();
    ring.release(step + steps - 1);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) settle(sums[i]);
  }

 private:
  using Operands = uint32_t[kTiles][2][4];

  /// Starts the products of half a stage and waits for those before, whose operands were `done`. The tensor
  /// cores read operands from registers while this thread goes on: naming `done` behind the wait keeps the
  /// compiler from giving its registers to anything else until then.
  static __device__ __forceinline__ void issue(Sums& sums, const Operands& operands, Operands& done,
                                               uint64_t x) {
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        Wgmma<kColumns>::ra(sums[i], operands[i][j], x + descriptor_step(j));
      }
    }
    wgmma_commit();
    wgmma_wait<1>();
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) asm volatile("" : "+r"(done[i][j][k])::"memory");
      }
    }
  }
};

}  // namespace cedar::kernels::cuda
