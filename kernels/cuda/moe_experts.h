#pragma once
// The two grouped products of the experts, for one width of tile. Blocks stay and take (tile, part of the outputs) items
// in turn: how many there are, only the device knows.

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/coded_product.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/moe_plan.h"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/store_tile.h"

namespace cedar::kernels::cuda {

/// Up to 32 columns memory-bound: blocks enough to hide each other's latencies. From 64 on sums need registers; from 96 on
/// two warpgroups share x, and the helpers, a warpgroup of their own, leave most of their registers to them.
template <int kColumnsArg>
struct MoeConfig {
  static constexpr int kColumns = kColumnsArg;
  static constexpr bool kLarge = kColumns >= 96;
  static constexpr int kWarpgroups = kLarge ? 2 : 1;
  static constexpr int kIssuers = kLarge ? 3 : 1;
  static constexpr int kRing = kLarge ? 5 : 4;
  static constexpr int kResident = kLarge ? 1 : kColumns >= 32 ? 2 : 3;
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kOutputs = 64 * kWarpgroups;  // of w1 and w3 an item; of w2, twice as many

  // Stages a step: of FP4, as many as take the place of FP8's.
  template <bool kFp4>
  static constexpr int kDepth = kFp4&& kColumns <= 32 ? 2 : 1;
  static constexpr int kWeightBytes =
      2 * kWarpgroups *
      (kDepth<true> * block_bytes(true) > block_bytes(false) ? kDepth<true> * block_bytes(true)
                                                             : block_bytes(false));
  using Ring = TileRing<kColumns, kDepth<true>, kWeightBytes, kRing, kIssuers, 4 * kWarpgroups>;
  template <bool kFp4>
  using Product = CodedProduct<kFp4, kColumns, 2, kWarpgroups, kDepth<kFp4>, Ring>;
  static constexpr int kThreads = kConsumers + 32 * Ring::kHelperWarps;

  // Activations of an item: [columns][outputs] bf16, rows padded by one access.
  static constexpr int kActivationPitch = kOutputs * 2 + 16;
  static constexpr int kActivationBytes = kColumns * kActivationPitch;
  static constexpr int kRowListBytes = kIssuers * kColumns * 4;
  static constexpr int kSharedBytes = Ring::kSharedBytes + kActivationBytes + kRowListBytes;
};

struct UpArgs {
  MoePlan plan;
  const Bf16* x;  // [rows, d]
  Bf16* hidden;   // [slots, inner]
  float clamp;
  int d, inner, parts;  // parts: items a tile
};

struct DownArgs {
  MoePlan plan;
  const Bf16* hidden;  // [slots, inner]
  Bf16* out;           // [slots, d]
  int d, inner, parts;
};

__device__ __forceinline__ float gated(float gate, float up, float clamp, float weight) {
  const float g = round_to_bf16(gate), u = round_to_bf16(up);
  const float capped = g > clamp ? clamp : g;
  const float bounded = u > clamp ? clamp : u < -clamp ? -clamp : u;
  return __fdividef(capped, 1.0f + expf(-capped)) * bounded * weight;
}

/// Sums of w1 and w3 to activations in shared memory, then, quantised, to `hidden`. By the consumers.
template <class Config>
__device__ __forceinline__ void finish_up(const UpArgs& a, const MoeTile& tile, int first_output,
                                          const float (&sums)[2][Config::kColumns / 2],
                                          uint8_t* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  sync_warps(1, Config::kConsumers);  // the item before has been read
#pragma unroll
  for (int i = 0; i < Config::kColumns / 2; ++i) {
    const int column = i / 4 * 8 + 2 * (lane % 4) + i % 2,
              row = warp * 16 + lane / 4 + i % 4 / 2 * 8;
    const float weight = column < tile.slots ? a.plan.slot_weights[tile.first_slot + column] : 0.0f;
    const float value = gated(sums[0][i] * tile.expert.scale[0], sums[1][i] * tile.expert.scale[1],
                              a.clamp, weight);
    *reinterpret_cast<Bf16*>(shared + column * Config::kActivationPitch + row * 2) = Bf16(value);
  }
  sync_warps(1, Config::kConsumers);
  constexpr int kPieces = Config::kOutputs / 8;  // of eight outputs
  for (int i = threadIdx.x; i < Config::kColumns * kPieces; i += Config::kConsumers) {
    const int column = i / kPieces, piece = i % kPieces;
    const uint4 v =
        *reinterpret_cast<const uint4*>(shared + column * Config::kActivationPitch + piece * 16);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    float amax = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      amax = max_magnitude(amax, __uint_as_float(words[w] << 16));
      amax = max_magnitude(amax, __uint_as_float(words[w] & 0xffff0000u));
    }
    amax = fmaxf(amax, __shfl_xor_sync(0xfu << (lane & 28), amax, 1));
    amax = fmaxf(amax, __shfl_xor_sync(0xfu << (lane & 28), amax, 2));
    const uint32_t scale = q8_scale(amax);
    const float inverse = q8_inverse(scale), unit = q8_value(scale);
    uint32_t values[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t codes = e4m3_pair(__uint_as_float(words[w] << 16) * inverse,
                                       __uint_as_float(words[w] & 0xffff0000u) * inverse);
      values[w] = e4m3_pair_values(codes, unit);
    }
    const int output = first_output + piece * 8;
    if (column < tile.slots && output < tile.expert.inner) {
      *reinterpret_cast<uint4*>(a.hidden + (tile.first_slot + column) * int64_t{a.inner} + output) =
          make_uint4(values[0], values[1], values[2], values[3]);
    }
  }
}

/// The items of this block, in the same order for helpers and consumers. fn(tile, part) multiplies one and returns the
/// number of ring steps that took.
template <class Fn>
__device__ __forceinline__ void for_each_item(const MoePlan& plan, int parts, const Fn& fn) {
  const int items = *plan.tile_count * parts;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    fn(plan.tiles[item / parts], item % parts);
  }
}

/// Helpers and consumers of an item, whatever the expert's format. `tile_of(i)`: where run i of a slot comes from.
template <class Config, bool kFp4, class RowAt, class TileOf>
__device__ __forceinline__ void help_item(const typename Config::Ring& ring, const RowAt& row_at,
                                          const TileOf& tile_of, int warp, int inputs, int& step) {
  using Product = typename Config::template Product<kFp4>;
  constexpr int kDepth = Config::template kDepth<kFp4>;
  const int stages = static_cast<int>(stage_count(inputs));
  const auto copy_weights = [&](uint32_t to, uint32_t barrier, int stage, int count) {
    Product::copy_weights(tile_of, to, barrier, stage, count);
  };
  ring.template help<kDepth>(row_at, copy_weights, warp, inputs, 0, stages, step);
  step += Config::Ring::template step_count<kDepth>(0, stages);
}

template <class Config>
__device__ __forceinline__ void multiply_item(const typename Config::Ring& ring, bool fp4,
                                              float (&sums)[2][Config::kColumns / 2], int inputs,
                                              int& step) {
  const int stages = static_cast<int>(stage_count(inputs));
  if (fp4) {
    Config::template Product<true>::run(sums, 0, stages, ring, step);
    step += Config::Ring::template step_count<Config::template kDepth<true>>(0, stages);
  } else {
    Config::template Product<false>::run(sums, 0, stages, ring, step);
    step += Config::Ring::template step_count<Config::template kDepth<false>>(0, stages);
  }
}

/// Where the tiles of 64 outputs of an expert's weight are.
struct ExpertTiles {
  const uint8_t* first;
  int64_t bytes;  // of a tile
  int last;       // beyond it, it again

  __device__ __forceinline__ ExpertTiles(const ExpertEntry& e, int which, int outputs, int inputs)
      : first(e.codes[which]),
        bytes(stage_count(inputs) * block_bytes(e.fp4 != 0)),
        last(static_cast<int>(tile_count(outputs)) - 1) {}
  __device__ __forceinline__ const uint8_t* at(int tile) const {
    return first + min(tile, last) * bytes;
  }
};

/// hidden = Q8(bf16(silu(w1 x) * w3 x * weight)), as values.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kResident)
    multiply_up(const __grid_constant__ UpArgs a) {
  using Ring = typename Config::Ring;
  extern __shared__ uint8_t shared[];
  const Ring ring(shared);
  int step = 0;
  if (threadIdx.x >= Config::kConsumers) {
    if constexpr (Config::kLarge) give_registers<56>();
    const int warp = (threadIdx.x - Config::kConsumers) / 32;
    int* rows = reinterpret_cast<int*>(shared + Ring::kSharedBytes + Config::kActivationBytes) +
                warp * Config::kColumns;
    for_each_item(a.plan, a.parts, [&](const MoeTile& tile, int part) {
      const int inner = tile.expert.inner;
      if (part * Config::kOutputs >= inner) return;
      for (int i = threadIdx.x % 32; warp < Config::kIssuers && i < Config::kColumns; i += 32) {
        rows[i] = i < tile.slots ? a.plan.slot_rows[tile.first_slot + i] : -1;
      }
      __syncwarp();
      const auto row_at = [&](int i) {
        return rows[i] >= 0 ? a.x + rows[i] * int64_t{a.d} : nullptr;
      };
      const ExpertTiles w1(tile.expert, 0, inner, a.d), w3(tile.expert, 1, inner, a.d);
      // Runs of a slot: each warpgroup's w1, then its w3.
      const auto tile_of = [&](int i) {
        return (i % 2 == 0 ? w1 : w3).at(part * Config::kWarpgroups + i / 2);
      };
      if (tile.expert.fp4 != 0) {
        help_item<Config, true>(ring, row_at, tile_of, warp, a.d, step);
      } else {
        help_item<Config, false>(ring, row_at, tile_of, warp, a.d, step);
      }
    });
  } else {
    if constexpr (Config::kLarge) take_registers<224>();
    for_each_item(a.plan, a.parts, [&](const MoeTile& tile, int part) {
      const int first_output = part * Config::kOutputs;
      if (first_output >= tile.expert.inner) return;
      float sums[2][Config::kColumns / 2] = {};
      multiply_item<Config>(ring, tile.expert.fp4 != 0, sums, a.d, step);
      finish_up<Config>(a, tile, first_output, sums, shared + Ring::kSharedBytes);
    });
  }
}

/// out = bf16(w2 hidden).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kResident)
    multiply_down(const __grid_constant__ DownArgs a) {
  extern __shared__ uint8_t shared[];
  const typename Config::Ring ring(shared);
  int step = 0;
  if (threadIdx.x >= Config::kConsumers) {
    if constexpr (Config::kLarge) give_registers<56>();
    const int warp = (threadIdx.x - Config::kConsumers) / 32;
    for_each_item(a.plan, a.parts, [&](const MoeTile& tile, int part) {
      const Bf16* hidden = a.hidden + tile.first_slot * int64_t{a.inner};
      const int slots = tile.slots, inner = tile.expert.inner;
      const auto row_at = [&](int i) {
        return i < slots ? hidden + i * int64_t{a.inner} : nullptr;
      };
      const ExpertTiles w2(tile.expert, 2, a.d, inner);
      const auto tile_of = [&](int i) { return w2.at(part * (2 * Config::kWarpgroups) + i); };
      if (tile.expert.fp4 != 0) {
        help_item<Config, true>(ring, row_at, tile_of, warp, inner, step);
      } else {
        help_item<Config, false>(ring, row_at, tile_of, warp, inner, step);
      }
    });
  } else {
    if constexpr (Config::kLarge) take_registers<224>();
    for_each_item(a.plan, a.parts, [&](const MoeTile& tile, int part) {
      float sums[2][Config::kColumns / 2] = {};
      multiply_item<Config>(ring, tile.expert.fp4 != 0, sums, tile.expert.inner, step);
      const int first_tile = (part * Config::kWarpgroups + static_cast<int>(threadIdx.x / 128)) * 2;
      const float scale = tile.expert.scale[2];
      Bf16* out = a.out + tile.first_slot * int64_t{a.d};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        store_tile_as<Config::kColumns / 8>(out, int64_t{a.d}, sums[i], scale,
                                            (first_tile + i) * kTileRows, a.d, 0, tile.slots,
                                            [](int) { return true; });
      }
    });
  }
}

/// Both products for tiles of Config::kColumns slots.
template <class Config>
Status multiply_experts(KernelContext& ctx, UpArgs up, DownArgs down) {
  constexpr const char* kOp = "moe_experts";
  const int64_t resident = int64_t{Config::kResident} * multiprocessors();
  const cudaStream_t stream = stream_of(ctx);
  up.parts = static_cast<int>(ceil_div(up.inner, Config::kOutputs));
  down.parts = static_cast<int>(ceil_div(down.d, 2 * Config::kOutputs));
  const auto grid = [&](int parts) {
    return dim3(static_cast<unsigned>(std::min(resident, up.plan.most_tiles() * parts)));
  };
  CEDAR_CHECK_OK(launch_clusters(kOp, multiply_up<Config>, grid(up.parts), 1, Config::kThreads,
                                 Config::kSharedBytes, stream, up));
  return launch_clusters(kOp, multiply_down<Config>, grid(down.parts), 1, Config::kThreads,
                         Config::kSharedBytes, stream, down);
}

}  // namespace cedar::kernels::cuda
