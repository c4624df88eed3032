// Two blocks of threads, a cluster, attend one query after another, each with all its heads (64 are the rows of the matrix
// instruction) and half of the channels, as keys and as values. Each adds up its half of the scores and sends it to the
// other; both then have the same scores and the same softmax.
//
// In a block one warpgroup has packed rows copied, two decode them, 64 at a time, one makes scores and their softmax, one
// multiplies with the values. (Who decodes may not have asked for rows: the fence behind it waits for all the thread's
// loads.) The scores of a block of rows are under way while the softmax of the one before is computed, which hides the way
// between the two blocks, and while its values are multiplied.
//
// Decoded rows are their values times 2^-16 (a bf16 factor can then hold every scale together with the power of two that the
// bits of E2M1 or E4M3 lack); the softmax scale and the last division give it back.

#include "kernels/cuda/sparse_attention_tiles.h"
#include "kernels/cuda/level.h"

#include <algorithm>

#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/packed_rows.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/sparse_attention_list.h"
#include "kernels/cuda/sparse_attention_pair.h"
#include "kernels/cuda/sparse_attention_softmax.h"
#include "kernels/cuda/sparse_attention_values.h"
#include "kernels/cuda/wgmma.h"
#include "kernels/cuda/wgmma_values.h"

namespace cedar::kernels::cuda {
namespace {

using namespace sparse_pair;

// ---- rows ---------------------------------------------------------------------------------------------------

/// Has the rows of all queries copied; a warpgroup, each warp 16 rows of a block.
__device__ __forceinline__ void fetch(const SparseAttentionParams& p, Shared& shared, int rank) {
  constexpr int kWarpRows = kListRows / kGroupWarps;
  const int thread = static_cast<int>(threadIdx.x) - kConsumers - kDecoders;
  const int warp = thread / kWarp;
  const int own_row = warp * kWarpRows + thread % kWarpRows;
  Turn<2> turn;
  const auto announce = [&](int rows, bool last, bool q8) {
    const int place = turn.place();
    copy_async_arrive(shared_address(&shared.packed_full[place]));
    if (thread == 0) {
      shared.packed_rows[place] = rows;
      shared.packed_is_last[place] = last ? 1 : 0;
      shared.packed_is_q8[place] = q8 ? 1 : 0;
      barrier_arrive(shared_address(&shared.packed_full[place]));
    }
    __syncwarp();
    ++turn.number;
  };
  using Chosen = ChosenRows<kGroupWarps>;
  Chosen::Entries entries = Chosen::ask(p, blockIdx.x, warp);
  for (int64_t query = blockIdx.x; query < p.rows; query += gridDim.x) {
    const WindowRows window(p, query);
    const int chosen = shared.chosen.fill(p, entries, warp, 2);
    if (query + gridDim.x < p.rows) entries = Chosen::ask(p, query + gridDim.x, warp);
    for (int first = 0; first < window.count; first += kListRows) {
      const uint8_t* row = window.row(p, first + own_row);
      turn.wait_until_empty(shared.packed_empty);
      shared.packed[turn.place()].fetch<RowFormat::q8>(reinterpret_cast<unsigned long long>(row),
                                                       warp * kWarpRows, rank);
      announce(min(window.count - first, kListRows),
               chosen == 0 && first + kListRows >= window.count, true);
    }
    for (int first = 0; first < chosen; first += kListRows) {
      const uint8_t* row = first + own_row < chosen ? shared.chosen.rows[first + own_row] : nullptr;
      turn.wait_until_empty(shared.packed_empty);
      shared.packed[turn.place()].fetch<RowFormat::q4n>(reinterpret_cast<unsigned long long>(row),
                                                        warp * kWarpRows, rank);
      announce(min(chosen - first, kListRows), first + kListRows >= chosen, false);
    }
    if (window.count + chosen == 0) {
      turn.wait_until_empty(shared.packed_empty);
      announce(0, true, false);
    }
    // The list is read.
    sync_warps(2, kGroupThreads);
  }
}

__device__ __forceinline__ void decode(const SparseAttentionParams& p, Shared& shared, int rank) {
  const int warp = static_cast<int>(threadIdx.x - kConsumers) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Turn<2> packed;
  Turn<kStages> turn;
  int slot = 0;
  for (int64_t query = blockIdx.x; query < p.rows; query += gridDim.x) {
    if (p.inv_freq != nullptr && warp == kDecoderWarps - 1 && rank == kCluster - 1) {
      shared.rotations[slot][lane] = rotation(p.positions[query], p.inv_freq[lane], true);
    }
    slot = (slot + 1) % Shared::kRotations;
    for (bool last = false; !last; ++packed.number, ++turn.number) {
      const int place = packed.place(), stage = turn.place();
      barrier_wait(shared_address(&shared.packed_full[place]), packed.phase());
      const int rows = shared.packed_rows[place];
      const bool q8 = shared.packed_is_q8[place] != 0;
      last = shared.packed_is_last[place] != 0;
      const uint32_t to = shared_address(shared.rows[stage]);
      turn.wait_until_empty(shared.rows_empty);
      if (rows != 0 && q8) {
        decode_rows<RowFormat::q8>(shared.packed[place], kDecoderRows * warp, rank, to);
      } else if (rows != 0) {
        decode_rows<RowFormat::q4n>(shared.packed[place], kDecoderRows * warp, rank, to);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(shared_address(&shared.packed_empty[place]));
      if (threadIdx.x == kConsumers) {
        shared.block_rows[stage] = rows;
        shared.block_is_last[stage] = last ? 1 : 0;
      }
      fence_for_tensor_cores();
      barrier_arrive(shared_address(&shared.rows_full[stage]));
    }
  }
}

// ---- scores -------------------------------------------------------------------------------------------------

/// Starts the copy of a query's heads, this block's channels of them; the scores' threads.
__device__ __forceinline__ void fetch_query(const SparseAttentionParams& p, Shared& shared,
                                            int64_t query, int rank) {
  constexpr uint32_t kPieces = kOwnDim / 8, kHeadsAtOnce = kGroupThreads / kPieces;
  const uint32_t first = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
  const Bf16* from = p.q + query * kHeads * kDim + rank * kOwnDim + first * kDim + piece * 8;
  const uint32_t tile = shared_address(shared.q) + piece / 8 * kTileBytes;
#pragma unroll
  for (uint32_t head = 0; head < kHeads; head += kHeadsAtOnce) {
    copy_async(tile + swizzled(first + head, piece % 8), from + head * kDim, true);
  }
  copy_async_commit();
}

/// The query as operand a of 16 steps. `rotations` turn back; null: it is turned already.
__device__ __forceinline__ void take_query(const Shared& shared, const float2* rotations,
                                           uint32_t (&q)[16][4]) {
  const uint32_t lane = threadIdx.x % kWarp, row = threadIdx.x / kWarp * 16 + lane % 16;
#pragma unroll
  for (int step = 0; step < 16; ++step) {
    const uint32_t from =
        shared_address(shared.q) + step / 4 * kTileBytes + swizzled(row, step % 4 * 2 + lane / 16);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q[step][0]), "=r"(q[step][1]), "=r"(q[step][2]), "=r"(q[step][3])
                 : "r"(from)
                 : "memory");
  }
  if (rotations == nullptr) return;
#pragma unroll
  for (int step = 12; step < 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 back = rotations[8 * (step - 12) + lane % 4 + i / 2 * 4];
      const float2 turned =
          rotate(low_half(q[step][i]), high_half(q[step][i]), make_float2(back.x, -back.y));
      q[step][i] = pack_bf16(turned.x, turned.y);
    }
  }
}

__device__ __forceinline__ void score(const SparseAttentionParams& p, Shared& shared, int rank) {
  const int thread = static_cast<int>(threadIdx.x);
  const int part = thread / kWarp, lane = thread % kWarp;
  const float scale = p.scale * (kValueScale * kLog2e);
  const uint32_t others_scores =
      remote_address(shared_address(&shared.scores[0][0][thread]), static_cast<uint32_t>(1 - rank));
  const uint32_t others_barriers =
      remote_address(shared_address(&shared.scores_full[0]), static_cast<uint32_t>(1 - rank));
  const float sink[2] = {p.sink[16 * part + lane / 4] * kLog2e,
                         p.sink[16 * part + lane / 4 + 8] * kLog2e};
  Turn<kStages> rows;  // of the block whose scores are under way
  Turn<2> turn;        // of the block whose softmax is next
  uint32_t q[16][4];
  const auto start = [&](float(&s)[32]) {
    const uint32_t at = __shfl_sync(kAllLanes, shared_address(shared.rows[rows.place()]), 0);
    wgmma_fence();
    wgmma_scores<kTileBytes>(s, q, tile_descriptor(at));
    wgmma_commit();
  };
  // The other block's buffer is free: its scores of the block before have come, so it has read those of two before.
  const auto finish = [&](float(&s)[32], int place) {
    wgmma_wait<0>();
    settle(s);
    if (thread == 0) {
      barrier_arrive_expecting(shared_address(&shared.scores_full[place]),
                               static_cast<int>(sizeof(shared.scores[0])));
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      store_remote(others_scores + (place * 8 + i) * kGroupThreads * 16,
                   make_float4(s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]),
                   others_barriers + place * 8);
    }
  };
  const auto wait_for_rows = [&] {
    barrier_wait(shared_address(&shared.rows_full[rows.place()]), rows.phase());
  };
  // The same in all lanes, and the compiler is to know it: it would have wgmma run one by one.
  const auto block_rows = [&] {
    return __shfl_sync(kAllLanes, shared.block_rows[rows.place()], 0);
  };
  const auto block_is_last = [&] {
    return __shfl_sync(kAllLanes, shared.block_is_last[rows.place()], 0) != 0;
  };
  const auto tell_values = [&] {
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&shared.weights_full[turn.place()]));
    ++turn.number;
  };

  int slot = 0;
  if (static_cast<int64_t>(blockIdx.x) < p.rows) fetch_query(p, shared, blockIdx.x, rank);
  for (int64_t query = blockIdx.x; query < p.rows; query += gridDim.x) {
    copy_async_wait<0>();
    wait_for_rows();
    sync_warps(1, kGroupThreads);
    take_query(shared, p.rotate_q && rank == kCluster - 1 ? shared.rotations[slot] : nullptr, q);
    slot = (slot + 1) % Shared::kRotations;
    sync_warps(1, kGroupThreads);
    if (query + gridDim.x < p.rows) fetch_query(p, shared, query + gridDim.x, rank);

    int count = block_rows();
    bool last = block_is_last();
    if (count == 0) {
      turn.wait_until_empty(shared.weights_empty);
      // The other block may not fall two behind: it says that it has come here, too.
      if (thread == 0) barrier_arrive_remote(others_barriers + turn.place() * 8);
      barrier_wait(shared_address(&shared.scores_full[turn.place()]), turn.phase());
      tell_values();
      ++rows.number;
      continue;
    }
    Softmax softmax{scale};
    const auto turn_scores = [&](float(&s)[32]) {
      barrier_wait(shared_address(&shared.scores_full[turn.place()]), turn.phase());
      // All of them on their way before the first is used.
      uint4 other[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        other[i] = load_shared<uint4>(shared_address(&shared.scores[turn.place()][i][thread]));
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        s[4 * i] += __uint_as_float(other[i].x);
        s[4 * i + 1] += __uint_as_float(other[i].y);
        s[4 * i + 2] += __uint_as_float(other[i].z);
        s[4 * i + 3] += __uint_as_float(other[i].w);
      }
      uint32_t weights[4][4];
      softmax.step(s, count, weights);
      turn.wait_until_empty(shared.weights_empty);
      Weights& to = shared.weights[turn.place()];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to.fragments[i][thread] =
            make_uint4(weights[i][0], weights[i][1], weights[i][2], weights[i][3]);
      }
      to.alpha[thread] = make_float2(softmax.alpha[0], softmax.alpha[1]);
    };
    // Softmax of `now`, whose block is `turn`, while `later` is computed.
    const auto step = [&](float(&now)[32], float(&later)[32]) {
      ++rows.number;
      wait_for_rows();
      start(later);
      turn_scores(now);
      tell_values();
      count = block_rows();
      last = block_is_last();
      finish(later, turn.place());
    };
    const auto end = [&](float(&now)[32]) {
      turn_scores(now);
      shared.weights[turn.place()].factor[thread] = softmax.factor(sink);
      tell_values();
      ++rows.number;
    };
    float even[32], odd[32];
    start(even);
    finish(even, turn.place());
    for (;;) {
      if (last) {
        end(even);
        break;
      }
      step(even, odd);
      if (last) {
        end(odd);
        break;
      }
      step(odd, even);
    }
  }
}

/// Grid: (queries at a time, 1, the two blocks of a cluster).
__global__ void __launch_bounds__(kThreads, 1)
    sparse_tiles_kernel(const __grid_constant__ SparseAttentionParams p) {
#if CEDAR_HOPPER_CODE
  extern __shared__ __align__(1024) uint8_t storage[];
  Shared& shared = *reinterpret_cast<Shared*>(storage);
  const int rank = static_cast<int>(cluster_rank());
  let_next_launch_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&shared.rows_full[i]), kDecoders);
      barrier_init(shared_address(&shared.rows_empty[i]), kGroupWarps);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared.packed_full[i]), kGroupThreads + 1);
      barrier_init(shared_address(&shared.packed_empty[i]), kDecoderWarps);
      barrier_init(shared_address(&shared.scores_full[i]), 1);
      barrier_init(shared_address(&shared.weights_full[i]), kGroupWarps);
      barrier_init(shared_address(&shared.weights_empty[i]), kGroupWarps);
    }
    barrier_init_done();
  }
  __syncwarp();
  cluster_barrier();
  wait_for_launch_before();
  // The same in all lanes, and the compiler is to know it: uniform registers hold what wgmma reads then.
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (group == 0) {
    take_registers<kScoreRegisters>();
    score(p, shared, rank);
  } else if (group == 1) {
    take_registers<kValueRegisters>();
    add_values(p, shared, rank);
  } else if (group < 4) {
    give_registers<kDecoderRegisters>();
    decode(p, shared, rank);
  } else {
    give_registers<kFetchRegisters>();
    fetch(p, shared, rank);
  }
  // Nothing more comes from the other block.
  __syncwarp();
  cluster_barrier();
#endif
}

}  // namespace

bool fits_tiles(const SparseAttentionParams& p) {
  const auto pieces = [](const void* base, int64_t a, int64_t b) {
    return (static_cast<int64_t>(reinterpret_cast<uintptr_t>(base)) | a | b) % 16 == 0;
  };
  return p.heads == kHeads && p.head_dim == kDim && (p.topk == nullptr || p.k <= kMostChosen) &&
         (p.inv_freq == nullptr || p.rotary_dim == 2 * kPairs) && aligned16(p.q) &&
         aligned16(p.o) && aligned16(p.chunk_rows) &&
         pieces(p.rings.base, p.rings.slot_stride_bytes, p.rings.row_bytes) &&
         pieces(p.global.base, p.global.page_bytes | p.global.offset_bytes, p.global.row_bytes);
}

Status sparse_attention_tiles(KernelContext& ctx, const SparseAttentionParams& p) {
  const int64_t clusters = std::min<int64_t>(p.rows, multiprocessors() / kCluster);
  const dim3 grid(static_cast<unsigned>(clusters), 1, kCluster);
  return launch_clusters("sparse_attention", sparse_tiles_kernel, grid, kCluster, kThreads,
                         sizeof(Shared), stream_of(ctx), Start::early, p);
}

}  // namespace cedar::kernels::cuda
