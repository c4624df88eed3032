#pragma once
// The two grouped products of the experts, for one width of tile. Blocks stay and take (tile, part of the
// outputs) items in turn: how many there are, only the device knows.

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/coded_product.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/level.h"
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
  static constexpr bool kApart = kColumns >= 64;  // the two products are launches of their own
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
  static constexpr int kQueueOffset = Ring::kSharedBytes + (kActivationBytes + 15) / 16 * 16;
  static constexpr int kSharedBytes = kQueueOffset + 128;
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

/// Items go to blocks in the order in which they ask, so that what an item waits for is always under way in a block that
/// runs: however many blocks run at a time. The producer asks; consumers read the answers from a queue in shared memory.
class ItemQueue {
 public:
  static constexpr int kEntries = 4;
  static constexpr int kBytes = 128;

  /// `shared`: kBytes on 16 bytes. All threads of the block; ends with a block-wide barrier.
  __device__ __forceinline__ ItemQueue(uint8_t* shared, int consumer_warps)
      : items_(reinterpret_cast<volatile int*>(shared + 64)), barriers_(shared_address(shared)) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kEntries; ++i) {
        barrier_init(full(i), 1);
        barrier_init(empty(i), static_cast<uint32_t>(consumer_warps));
      }
      barrier_init_done();
    }
    __syncthreads();
  }
  /// The producer: the next item of all. Blocks are spread over the multiprocessors, `turn` of them, round after round: at the
  /// start each round lets the one before ask first. Else some multiprocessors would get three items of the first product and
  /// others none. Time alone tells when: nothing says that other blocks run.
  __device__ __forceinline__ int ask(int* next_item, int turn) {
    const int entry = number_ % kEntries;
    if (number_ >= kEntries) barrier_wait(empty(entry), (number_ / kEntries - 1) & 1);
    if (number_ == 0) {
      constexpr int kRoundCycles = 1500;
      const int64_t until = clock64() + static_cast<int>(blockIdx.x) / turn * kRoundCycles;
      while (clock64() < until) {
      }
    }
    const int item = atomicAdd(next_item, 1);
    items_[entry] = item;
    barrier_arrive(full(entry));
    ++number_;
    return item;
  }
  /// The consumers: what the producer got.
  __device__ __forceinline__ int read() {
    const int entry = number_ % kEntries;
    barrier_wait(full(entry), number_ / kEntries & 1);
    const int item = items_[entry];
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty(entry));
    ++number_;
    return item;
  }

 private:
  __device__ __forceinline__ uint32_t full(int entry) const { return barriers_ + entry * 8; }
  __device__ __forceinline__ uint32_t empty(int entry) const { return barriers_ + 32 + entry * 8; }

  volatile int* items_;
  uint32_t barriers_;
  int number_ = 0;
};

/// Until ask() runs out: first(tile, part) for the items of the first product, then second(tile, part).
template <bool kFirst, bool kSecond, class Ask, class First, class Second>
__device__ __forceinline__ void for_each_item(const MoePlan& plan, int first_parts,
                                              int second_parts, const Ask& ask, const First& first,
                                              const Second& second) {
  const int tiles = *plan.tile_count;
  const int first_items = kFirst ? tiles * first_parts : 0;
  const int second_items = kSecond ? tiles * second_parts : 0;
  for (;;) {
    const int item = ask();
    if (item >= first_items + second_items) return;
    if (item < first_items) {
      if constexpr (kFirst) first(item / first_parts, item % first_parts);
    } else {
      const int later = item - first_items;
      if constexpr (kSecond) second(later / second_parts, later % second_parts);
    }
  }
}

/// Producer and consumers of an item, whatever the expert's format. `x_row`: the tile's first slot.
/// `tile_of(i)`: where tile i of the block's begins.
template <class Config, bool kFp4, class TileOf, class Wait>
__device__ __forceinline__ void produce_item(const typename Config::Ring& ring,
                                             const CUtensorMap& x, int x_row, const TileOf& tile_of,
                                             int inputs, int& step, const Wait& x_is_there) {
  using Product = typename Config::template Product<kFp4>;
  const int stages = static_cast<int>(stage_count(inputs));
  Product::produce(ring, x, x_row, tile_of, 0, stages, step, x_is_there);
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

/// What one launch needs for both products: all items of the first, then those of the second, each of which waits until its
/// tile's activations are there.
struct ExpertArgs {
  UpArgs up;
  DownArgs down;
  int multiprocessors;
};

/// By the consumers of an item of the first product, after their stores: one more part of `tile` is done.
template <class Config>
__device__ __forceinline__ void tell_part_done(const MoePlan& plan, int tile) {
  fence_for_copy_engine();
  sync_warps(1, Config::kConsumers);
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(plan.parts_done + tile, 1);
  }
}
/// By the producer: until all parts of `tile` are done.
__device__ __forceinline__ void wait_for_parts(const MoePlan& plan, int tile, int parts) {
  while (load_acquire(plan.parts_done + tile) < parts) __nanosleep(20);
  fence_for_copy_engine();
}

/// kFirst: hidden = Q8(bf16(silu(w1 x) * w3 x * weight)), as values; kSecond: out = bf16(w2 hidden). Both in one launch unless
/// tiles are so wide that the code of both would leave no registers to run wgmma ahead.
template <class Config, bool kFirst, bool kSecond>
__global__ void __launch_bounds__(Config::kThreads, Config::kResident)
    multiply_tiles(const __grid_constant__ ExpertArgs args) {
#if CEDAR_HOPPER_CODE
  using Ring = typename Config::Ring;
  const UpArgs& a = args.up;
  const DownArgs& b = args.down;
  extern __shared__ uint8_t shared[];
  const Ring ring(shared);
  // Items of one product wait for nothing: blocks take them in turn.
  constexpr bool kInTurn = !(kFirst && kSecond);
  ItemQueue queue(shared + Config::kQueueOffset, Config::kConsumers / 32);
  int next_in_turn = blockIdx.x;
  const auto take_turn = [&] {
    const int item = next_in_turn;
    next_in_turn += gridDim.x;
    return item;
  };
  int step = 0;
  if (threadIdx.x >= Config::kConsumers) {
    if constexpr (Config::kLarge) give_registers<40>();
    if (threadIdx.x > Config::kConsumers) return;
    const auto up = [&](int index, int part) {
      const MoeTile& tile = a.plan.tiles[index];
      const int inner = tile.expert.inner;
      if (part * Config::kOutputs >= inner) return;
      const ExpertTiles w1(tile.expert, 0, inner, a.d), w3(tile.expert, 1, inner, a.d);
      // Tiles of the block: each warpgroup's w1, then its w3.
      const auto tile_of = [&](int i) {
        return (i % 2 == 0 ? w1 : w3).at(part * Config::kWarpgroups + i / 2);
      };
      if (tile.expert.fp4 != 0) {
        produce_item<Config, true>(ring, a.x, tile.first_slot, tile_of, a.d, step, XIsThere());
      } else {
        produce_item<Config, false>(ring, a.x, tile.first_slot, tile_of, a.d, step, XIsThere());
      }
    };
    const auto down = [&](int index, int part) {
      const MoeTile& tile = b.plan.tiles[index];
      const int inner = tile.expert.inner;
      const auto hidden_is_there = [&] {
        wait_for_parts(b.plan, index, (inner + Config::kOutputs - 1) / Config::kOutputs);
      };
      const ExpertTiles w2(tile.expert, 2, b.d, inner);
      const auto w2_tile = [&](int i) { return w2.at(part * (2 * Config::kWarpgroups) + i); };
      const auto multiply = [&](const auto& wait) {
        if (tile.expert.fp4 != 0) {
          produce_item<Config, true>(ring, b.hidden, tile.first_slot, w2_tile, inner, step, wait);
        } else {
          produce_item<Config, false>(ring, b.hidden, tile.first_slot, w2_tile, inner, step, wait);
        }
      };
      if constexpr (kFirst) {
        multiply(hidden_is_there);
      } else {
        multiply(XIsThere());
      }
    };
    for_each_item<kFirst, kSecond>(
        a.plan, a.parts, b.parts,
        [&] { return kInTurn ? take_turn() : queue.ask(a.plan.next_item, args.multiprocessors); },
        up, down);
  } else {
    if constexpr (Config::kLarge) take_registers<232>();
    const auto up = [&](int index, int part) {
      const MoeTile& tile = a.plan.tiles[index];
      const int first_output = part * Config::kOutputs;
      if (first_output >= tile.expert.inner) return;
      float sums[2][Config::kColumns / 2] = {};
      multiply_item<Config>(ring, tile.expert.fp4 != 0, sums, a.d, step);
      finish_up<Config>(a, tile, first_output, sums, shared + Ring::kSharedBytes);
      if constexpr (kSecond) tell_part_done<Config>(a.plan, index);
    };
    const auto down = [&](int index, int part) {
      const MoeTile& tile = b.plan.tiles[index];
      float sums[2][Config::kColumns / 2] = {};
      multiply_item<Config>(ring, tile.expert.fp4 != 0, sums, tile.expert.inner, step);
      const int first_tile = (part * Config::kWarpgroups + static_cast<int>(threadIdx.x / 128)) * 2;
      const float scale = tile.expert.scale[2];
      Bf16* out = b.out + tile.first_slot * int64_t{b.d};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        store_tile_as<Config::kColumns / 8>(out, int64_t{b.d}, sums[i], scale,
                                            (first_tile + i) * kTileRows, b.d, 0, tile.slots,
                                            [](int) { return true; });
      }
    };
    for_each_item<kFirst, kSecond>(
        a.plan, a.parts, b.parts, [&] { return kInTurn ? take_turn() : queue.read(); }, up, down);
  }
#endif
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
  // In one launch blocks beyond the first product's items ask for the second's weights at once.
  const int64_t items = up.plan.most_tiles() *
                        (Config::kApart ? std::max(up.parts, down.parts) : up.parts + down.parts);
  const dim3 grid(static_cast<unsigned>(std::min(resident, items)));
  const ExpertArgs args{up, down, multiprocessors()};
  const auto launch = [&](auto* kernel) {
    return launch_clusters(kOp, kernel, grid, 1, Config::kThreads, Config::kSharedBytes, stream,
                           Start::in_turn, args);
  };
  if constexpr (Config::kApart) {
    CEDAR_CHECK_OK(launch(multiply_tiles<Config, true, false>));
    return launch(multiply_tiles<Config, false, true>);
  } else {
    return launch(multiply_tiles<Config, true, true>);
  }
}

}  // namespace cedar::kernels::cuda
