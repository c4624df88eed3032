#pragma once
// The two grouped products of the experts, for one width of tile. Blocks stay and take (tile, part of the
// outputs) items in turn: how many there are, only the device knows.

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/coded_product.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/moe_plan.h"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/store_tile.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tile_ring.h"

namespace cedar::kernels::cuda {

/// Up to 32 columns memory-bound: blocks enough to hide each other's latencies. From 64 on sums need
/// registers; from 96 on two warpgroups share x, and the producer has a warpgroup of its own, which leaves
/// most of its registers to them.
template <int kColumnsArg>
struct MoeConfig {
  static constexpr int kColumns = kColumnsArg;
  static constexpr bool kLarge = kColumns >= 96;
  static constexpr int kWarpgroups = kLarge ? 2 : 1;
  static constexpr int kRing = kLarge ? 5 : 4;
  static constexpr int kResident = kLarge ? 1 : kColumns >= 32 ? 2 : 3;
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kThreads = kConsumers + (kLarge ? 128 : 32);
  static constexpr int kOutputs = 64 * kWarpgroups;  // of w1 and w3 an item; of w2, twice as many

  // Stages a step: of FP4, as many as take the place of FP8's.
  template <bool kFp4>
  static constexpr int kDepth = kFp4&& kColumns <= 32 ? 2 : 1;
  template <bool kFp4>
  using Product = CodedProduct<kFp4, kColumns, 2, kWarpgroups, kDepth<kFp4>>;
  static constexpr int kWeightBytes = Product<true>::kWeightBytes > Product<false>::kWeightBytes
                                          ? Product<true>::kWeightBytes
                                          : Product<false>::kWeightBytes;
  using Ring = TileRing<Product<true>::kXBytes, kWeightBytes, kRing, 4 * kWarpgroups>;

  // Activations of an item: [columns][outputs] bf16, rows padded by one access.
  static constexpr int kActivationPitch = kOutputs * 2 + 16;
  static constexpr int kActivationBytes = kColumns * kActivationPitch;
  static constexpr int kSharedBytes = Ring::kSharedBytes + kActivationBytes;
};

struct UpArgs {
  CUtensorMap x;  // [slots, d]
  MoePlan plan;
  Bf16* hidden;  // [slots, pitch]
  float clamp;
  int d, pitch, parts;  // parts: items a tile
};

struct DownArgs {
  CUtensorMap hidden;  // [slots, pitch]
  MoePlan plan;
  Bf16* out;  // [slots, d]
  int d, parts;
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
    // The last stage of the next product reads zeros beyond the expert's width: its padding's activations.
    if (column < tile.slots && output < static_cast<int>(stage_count(tile.expert.inner)) * kStage) {
      *reinterpret_cast<uint4*>(a.hidden + (tile.first_slot + column) * int64_t{a.pitch} + output) =
          make_uint4(values[0], values[1], values[2], values[3]);
    }
  }
}

/// The items of this block, in the same order for producer and consumers. fn(tile, part) multiplies one and
/// returns the number of ring steps that took.
template <class Fn>
__device__ __forceinline__ void for_each_item(const MoePlan& plan, int parts, const Fn& fn) {
  const int items = *plan.tile_count * parts;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    fn(plan.tiles[item / parts], item % parts);
  }
}

/// Producer and consumers of an item, whatever the expert's format. `x_row`: the tile's first slot.
/// `tile_of(i)`: where tile i of the block's begins.
template <class Config, bool kFp4, class TileOf>
__device__ __forceinline__ void produce_item(const typename Config::Ring& ring,
                                             const CUtensorMap& x, int x_row, const TileOf& tile_of,
                                             int inputs, int& step) {
  using Product = typename Config::template Product<kFp4>;
  const int stages = static_cast<int>(stage_count(inputs));
  Product::produce(ring, x, x_row, tile_of, 0, stages, step);
  step += Product::step_count(0, stages);
}

template <class Config>
__device__ __forceinline__ void multiply_item(const typename Config::Ring& ring, bool fp4,
                                              float (&sums)[2][Config::kColumns / 2], int inputs,
                                              int& step) {
  const int stages = static_cast<int>(stage_count(inputs));
  if (fp4) {
    Config::template Product<true>::run(sums, 0, stages, ring, step);
    step += Config::template Product<true>::step_count(0, stages);
  } else {
    Config::template Product<false>::run(sums, 0, stages, ring, step);
    step += Config::template Product<false>::step_count(0, stages);
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
    if constexpr (Config::kLarge) give_registers<40>();
    if (threadIdx.x > Config::kConsumers) return;
    for_each_item(a.plan, a.parts, [&](const MoeTile& tile, int part) {
      const int inner = tile.expert.inner;
      if (part * Config::kOutputs >= inner) return;
      const ExpertTiles w1(tile.expert, 0, inner, a.d), w3(tile.expert, 1, inner, a.d);
      // Tiles of the block: each warpgroup's w1, then its w3.
      const auto tile_of = [&](int i) {
        return (i % 2 == 0 ? w1 : w3).at(part * Config::kWarpgroups + i / 2);
      };
      if (tile.expert.fp4 != 0) {
        produce_item<Config, true>(ring, a.x, tile.first_slot, tile_of, a.d, step);
      } else {
        produce_item<Config, false>(ring, a.x, tile.first_slot, tile_of, a.d, step);
      }
    });
  } else {
    if constexpr (Config::kLarge) take_registers<232>();
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
    if constexpr (Config::kLarge) give_registers<40>();
    if (threadIdx.x > Config::kConsumers) return;
    for_each_item(a.plan, a.parts, [&](const MoeTile& tile, int part) {
      const int inner = tile.expert.inner;
      const ExpertTiles w2(tile.expert, 2, a.d, inner);
      const auto tile_of = [&](int i) { return w2.at(part * (2 * Config::kWarpgroups) + i); };
      if (tile.expert.fp4 != 0) {
        produce_item<Config, true>(ring, a.hidden, tile.first_slot, tile_of, inner, step);
      } else {
        produce_item<Config, false>(ring, a.hidden, tile.first_slot, tile_of, inner, step);
      }
    });
  } else {
    if constexpr (Config::kLarge) take_registers<232>();
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
Status multiply_experts(KernelContext& ctx, UpArgs up, DownArgs down, const Bf16* x) {
  constexpr const char* kOp = "moe_experts";
  const int64_t resident = int64_t{Config::kResident} * multiprocessors();
  const cudaStream_t stream = stream_of(ctx);
  const int64_t slots = up.plan.slots();
  CEDAR_TRY(up.x, tensor_map(x, slots, up.d, up.d, Config::kColumns));
  CEDAR_TRY(down.hidden, tensor_map(up.hidden, slots, up.pitch, up.pitch, Config::kColumns));
  up.parts = static_cast<int>(ceil_div(up.pitch, Config::kOutputs));
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
