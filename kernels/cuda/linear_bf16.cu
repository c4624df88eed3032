// bf16 weights need no decoding: W and x both come through the ring, and wgmma reads both from shared memory.

#include <algorithm>

#include "kernels/cuda/cluster_sum.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/level.h"
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/many_rows.h"
#include "kernels/cuda/store_tile.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tile_ring.h"
#include "kernels/cuda/weight_layout.h"
#include "kernels/cuda/wgmma.h"

namespace cedar::kernels::cuda {
namespace {

struct Args {
  CUtensorMap weight, x;
  LinearOutput out;
  int rows, outputs, inputs;
  int parts;   // of the inputs, see input_parts()
  bool early;  // the launch starts early; otherwise weights that come first would only delay x
  int group_outputs;  // outputs that read the same inputs
};

/// kColumns rows of x against 64 outputs a warpgroup; a stage of both fills a slot of the ring.
template <int kColumns, int kWarpgroups, int kRing>
struct Product {
  static constexpr int kOutputs = 64 * kWarpgroups;
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kXBytes = kColumns * 128, kWeightBytes = kOutputs * 128;
  using Ring = TileRing<kXBytes, kWeightBytes, kRing, 4 * kWarpgroups>;

  /// The producer: stages [first, last), as steps from `step` on. kEarly: the launch before makes x; the first weights are asked for
  /// before it is over.
  template <bool kEarly>
  static __device__ __forceinline__ void produce(const Args& a, const Ring& ring, int first_output,
                                                 int first_row, int first, int last, int step) {
    const int first_input = first_output / a.group_outputs * a.inputs;
    const auto copy_x = [&](int stage, uint32_t to, uint32_t barrier) {
      copy_tensor(to, &a.x, first_input + stage * kStage, first_row, barrier);
    };
    const auto copy_weights = [&](int stage, uint32_t to, uint32_t barrier) {
#pragma unroll
      for (int i = 0; i < kWarpgroups; ++i) {
        copy_tensor(to + i * kTileRows * 128, &a.weight, stage * kStage,
                    first_output + i * kTileRows, barrier);
      }
    };
    const int ahead = kEarly ? min(last - first, Ring::kSlots) : 0;
    if constexpr (kEarly) {
      for (int s = 0; s < ahead; ++s) {
        ring.fill_weights(step + s, kXBytes + kWeightBytes, [&](uint32_t to, uint32_t barrier) {
          copy_weights(first + s, to, barrier);
        });
      }
      wait_for_launch_before();
      for (int s = 0; s < ahead; ++s) {
        ring.fill_x(step + s,
                    [&](uint32_t to, uint32_t barrier) { copy_x(first + s, to, barrier); });
      }
    }
    for (int stage = first + ahead; stage < last; ++stage) {
      ring.fill(step + stage - first, kXBytes + kWeightBytes,
                [&](uint32_t x, uint32_t weights, uint32_t barrier) {
                  copy_x(stage, x, barrier);
                  copy_weights(stage, weights, barrier);
                });
    }
  }

  /// Stages [first, last), whose numbers are those of the ring's steps from `origin` on.
  static __device__ __forceinline__ void run(float (&sums)[kColumns / 2], const Ring& ring,
                                             int first, int last, int origin) {
    settle(sums);
    for (int s = first; s < last; ++s) {
      ring.wait(s - origin);
      const uint64_t w = tile_descriptor(ring.weights(s - origin) + threadIdx.x / 128 * 8192);
      const uint64_t x = tile_descriptor(ring.x(s - origin));
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        Wgmma<kColumns>::ss(sums, w + descriptor_step(j), x + descriptor_step(j));
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (s > first) ring.release(s - 1 - origin);
    }
    wgmma_wait<0>();
    settle(sums);
    ring.release(last - 1 - origin);
  }
};

template <int kColumns>
struct FewRows {
  using P = Product<kColumns, 1, kColumns == 64 ? 6 : 8>;
  static constexpr int kThreads = P::kConsumers + 32;
};

/// Few rows. Grid: (tiles of outputs, tiles of kColumns rows, parts of the inputs = cluster).
template <int kColumns>
__global__ void __launch_bounds__(FewRows<kColumns>::kThreads)
    multiply_few(const __grid_constant__ Args a) {
#if CEDAR_HOPPER_CODE
  using P = typename FewRows<kColumns>::P;
  extern __shared__ uint8_t shared[];
  let_next_launch_start();
  const typename P::Ring ring(shared);
  const int stages = static_cast<int>(stage_count(a.inputs));
  const int part = blockIdx.z;
  const int first = stages * part / a.parts, last = stages * (part + 1) / a.parts;
  const int first_row = blockIdx.y * kColumns, first_output = blockIdx.x * P::kOutputs;
  float sums[kColumns / 2] = {};
  if (threadIdx.x >= P::kConsumers) {
    if (threadIdx.x == P::kConsumers) {
      if (a.early) {
        P::template produce<true>(a, ring, first_output, first_row, first, last, 0);
      } else {
        P::template produce<false>(a, ring, first_output, first_row, first, last, 0);
      }
    }
    __syncwarp();
  } else {
    P::run(sums, ring, first, last, first);
  }
  sum_over_cluster<kColumns / 8>(sums, reinterpret_cast<float*>(shared + P::Ring::kFreeOffset),
                                 P::kConsumers);
  __shared__ float greatest[4 * kColumns];
  if (threadIdx.x < P::kConsumers && a.out.quantised) {
    store_tile_q8<kColumns / 8>(static_cast<Bf16*>(a.out.y), a.out.stride, sums, first_output,
                                first_row, a.rows, greatest, 1,
                                [](int j) { return owns_group(j); });
  } else if (threadIdx.x < P::kConsumers) {
    store_tile<kColumns / 8>(a.out, sums, 1.0f, first_output, a.outputs, first_row, a.rows,
                             [](int j) { return owns_group(j); });
  }
  __syncwarp();
  leave_cluster();
#endif
}

struct ManyRows {
  using P = Product<TileStore::kRows, 2, 5>;
  static constexpr int kThreads = P::kConsumers + 128;
  static constexpr int kSharedBytes = P::Ring::kSharedBytes + 2 * TileStore::kBytes;
};

__host__ __device__ TileOrder tile_order(const Args& a) {
  constexpr int kOutputs = ManyRows::P::kOutputs;
  return {(a.rows + TileStore::kRows - 1) / TileStore::kRows,
          (a.outputs + kOutputs - 1) / kOutputs};
}

/// Many rows, two warpgroups and the producer's, which leaves most of its registers to them. Blocks stay and take tiles in
/// turn: the next tile's x and W are under way while this one's sums are stored. The parts of the inputs are summed one after
/// the other and then added in the order in which a cluster adds them: the same bits as with few rows.
__global__ void __launch_bounds__(ManyRows::kThreads, 1)
    multiply_many(const __grid_constant__ Args a) {
#if CEDAR_HOPPER_CODE
  using P = ManyRows::P;
  extern __shared__ uint8_t shared[];
  __shared__ float greatest[2][4 * TileStore::kRows];
  const typename P::Ring ring(shared);
  const TileOrder order = tile_order(a);
  const int stages = static_cast<int>(stage_count(a.inputs));
  int step = 0;
  if (threadIdx.x >= P::kConsumers) {
    give_registers<40>();
    if (threadIdx.x > P::kConsumers) return;
    for (int t = blockIdx.x; t < order.count(); t += gridDim.x, step += stages) {
      const TileOrder::Place place = order.at(t);
      P::produce<false>(a, ring, place.output_tile * P::kOutputs, place.row_tile * TileStore::kRows,
                        0, stages, step);
    }
  } else {
    take_registers<232>();
    const int group = static_cast<int>(threadIdx.x / 128);
    const TileStore out(shared_address(shared) + P::Ring::kSharedBytes + group * TileStore::kBytes,
                        1 + group);
    for (int t = blockIdx.x; t < order.count(); t += gridDim.x, step += stages) {
      const TileOrder::Place place = order.at(t);
      float total[64];
      for (int part = 0; part < a.parts; ++part) {
        float sums[64] = {};
        P::run(sums, ring, stages * part / a.parts, stages * (part + 1) / a.parts, -step);
#pragma unroll
        for (int i = 0; i < 64; ++i) total[i] = part == 0 ? sums[i] : total[i] + sums[i];
      }
      const int output = place.output_tile * P::kOutputs + group * kTileRows;
      const int first_row = place.row_tile * TileStore::kRows;
      if (output >= a.outputs) continue;
      if (a.out.quantised) {
        sync_warps(1 + group, 128);  // `greatest` of the tile before has been read
        store_tile_q8<16>(static_cast<Bf16*>(a.out.y), a.out.stride, total, output, first_row,
                          a.rows, greatest[group], 1 + group, [](int) { return true; });
      } else {
        out.store(a.out, total, 1.0f, output, a.outputs, first_row, a.rows);
      }
    }
  }
#endif
}

struct Operands {
  const Bf16* weight;
  const Bf16* x;
  int64_t x_columns, x_stride;
};

/// Fills in the maps; x in boxes of `columns` rows.
Status map_operands(Args& a, const Operands& o, int columns) {
  CEDAR_TRY(a.weight, tensor_map(o.weight, a.outputs, a.inputs, a.inputs, kTileRows));
  CEDAR_TRY(a.x, tensor_map(o.x, a.rows, o.x_columns, o.x_stride, columns));
  return {};
}

template <int kColumns>
Status few(cudaStream_t stream, Args& a, const Operands& o) {
  using P = typename FewRows<kColumns>::P;
  CEDAR_CHECK_OK(map_operands(a, o, kColumns));
  const dim3 grid(static_cast<unsigned>(ceil_div(a.outputs, P::kOutputs)),
                  static_cast<unsigned>(ceil_div(a.rows, kColumns)),
                  static_cast<unsigned>(a.parts));
  const Start start = start_of(grid, kSharedBytesOfAll / P::Ring::kSharedBytes);
  a.early = start == Start::early;
  return launch_clusters("linear", multiply_few<kColumns>, grid, a.parts,
                         FewRows<kColumns>::kThreads, P::Ring::kSharedBytes, stream, start, a);
}

Status many(cudaStream_t stream, Args& a, const Operands& o) {
  CEDAR_CHECK_OK(map_operands(a, o, TileStore::kRows));
  const dim3 grid(static_cast<unsigned>(std::min(tile_order(a).count(), multiprocessors())));
  return launch_clusters("linear", multiply_many, grid, 1, ManyRows::kThreads,
                         ManyRows::kSharedBytes, stream, Start::in_turn, a);
}

}  // namespace

Status linear_bf16(KernelContext& ctx, const PackedWeight& weight, const Bf16* x, int64_t x_stride,
                   int64_t rows, int64_t groups, const LinearOutput& out) {
  Args a{};
  const Operands o{weight.codes.as<Bf16>(), x, groups * weight.in, x_stride};
  a.out = out;
  a.rows = static_cast<int>(rows);
  a.outputs = static_cast<int>(weight.out);
  a.inputs = static_cast<int>(weight.in);
  a.group_outputs = static_cast<int>(weight.out / groups);
  a.parts = input_parts(ceil_div(weight.out, kTileRows), stage_count(weight.in));
  const cudaStream_t stream = stream_of(ctx);
  if (rows <= 8) return few<8>(stream, a, o);
  if (rows <= 16) return few<16>(stream, a, o);
  if (rows <= 32) return few<32>(stream, a, o);
  if (rows <= kFewRows) return few<64>(stream, a, o);
  return many(stream, a, o);
}

}  // namespace cedar::kernels::cuda
