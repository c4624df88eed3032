#include "kernels/cuda/moe_plan.h"

#include "core/units.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/choose_experts.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = 1024;

/// Exclusive prefix sums of two numbers a thread over the block.
__device__ __forceinline__ int2 scan_block(int2 value, int2* warp_sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int2 sum = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int x = __shfl_up_sync(~0u, sum.x, distance), y = __shfl_up_sync(~0u, sum.y, distance);
    if (lane >= distance) sum.x += x, sum.y += y;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    int2 total = warp_sums[lane];
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int x = __shfl_up_sync(~0u, total.x, distance);
      const int y = __shfl_up_sync(~0u, total.y, distance);
      if (lane >= distance) total.x += x, total.y += y;
    }
    warp_sums[lane] = total;
  }
  __syncthreads();
  const int2 before = warp > 0 ? warp_sums[warp - 1] : make_int2(0, 0);
  return make_int2(before.x + sum.x - value.x, before.y + sum.y - value.y);
}

__device__ __forceinline__ bool exists(const MoePlan& p, int expert) {
  return expert >= 0 && expert < p.expert_count;
}

/// One block. `shared`: counts [experts], then next free slots [experts].
__device__ __forceinline__ void make_lists(const MoePlan& p, int* shared, int2* warp_sums) {
  int* counts = shared;
  int* next = shared + p.expert_count;
  const int routed = p.rows * p.top;
  const int shared_tiles = p.shared ? (p.rows + p.columns - 1) / p.columns : 0;
  for (int e = threadIdx.x; e < p.expert_count; e += kThreads) counts[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < routed; i += kThreads) {
    const int expert = p.experts[i];
    if (exists(p, expert)) atomicAdd(&counts[expert], 1);
  }
  __syncthreads();

  // Each thread owns consecutive experts: first slot and first tile of each.
  const int share = (p.expert_count + kThreads - 1) / kThreads;
  const int first = min(static_cast<int>(threadIdx.x) * share, p.expert_count);
  const int last = min(first + share, p.expert_count);
  int2 mine = make_int2(0, 0);
  for (int e = first; e < last; ++e) {
    mine.x += counts[e];
    mine.y += (counts[e] + p.columns - 1) / p.columns;
  }
  int2 at = scan_block(mine, warp_sums);
  for (int e = first; e < last; ++e) {
    next[e] = at.x;
    for (int begin = 0; begin < counts[e]; begin += p.columns) {
      MoeTile& tile = p.tiles[shared_tiles + at.y++];
      tile.expert = p.table[e];
      tile.first_slot = at.x + begin;
      tile.slots = min(p.columns, counts[e] - begin);
    }
    at.x += counts[e];
  }
  if (threadIdx.x == kThreads - 1) *p.tile_count = shared_tiles + at.y;
  if (threadIdx.x == 0) *p.next_item = 0;
  const int most = static_cast<int>(p.most_tiles());
  for (int i = threadIdx.x; i < most; i += kThreads) p.parts_done[i] = 0;
  for (int i = threadIdx.x; i < shared_tiles; i += kThreads) {
    MoeTile& tile = p.tiles[i];
    tile.expert = p.table[p.expert_count];
    tile.first_slot = routed + i * p.columns;
    tile.slots = min(p.columns, p.rows - i * p.columns);
  }
  __syncthreads();

  // A slot's place among its expert's does not matter to any result: columns of a product are independent.
  for (int i = threadIdx.x; i < routed; i += kThreads) {
    const int row = i / p.top, expert = p.experts[i];
    int rank = 0;
    for (int j = row * p.top; j < (row + 1) * p.top; ++j) {
      rank += p.experts[j] < expert || (p.experts[j] == expert && j < i);
    }
    int slot = -1;
    if (exists(p, expert)) {
      slot = atomicAdd(&next[expert], 1);
      p.slot_rows[slot] = row;
      p.slot_weights[slot] = p.weights[i];
    }
    p.row_slots[row * p.top + rank] = slot;
  }
  if (!p.shared) return;
  for (int row = threadIdx.x; row < p.rows; row += kThreads) {
    p.slot_rows[routed + row] = row;
    p.slot_weights[routed + row] = 1.0f;
  }
}

__global__ void __launch_bounds__(kThreads) plan_step(const __grid_constant__ MoePlan p) {
  extern __shared__ int shared[];
  __shared__ int2 warp_sums[32];
  make_lists(p, shared, warp_sums);
}

/// A warp a row; the block that is done last makes the plan. `done`: zero before.
template <int kMost>
__global__ void __launch_bounds__(kThreads)
    choose_and_plan_step(const __grid_constant__ RouteArgs a, int32_t* done) {
  extern __shared__ int shared[];
  __shared__ int2 warp_sums[32];
  __shared__ bool last;
  const MoePlan& p = a.plan;
  const int row = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  if (row < p.rows) {
    const bool image = a.image_mask != nullptr && a.image_mask[row] != 0;
    choose_experts<kMost>(a.gate + row * int64_t{p.expert_count}, image ? a.bias_image : a.bias,
                          p.expert_count, p.top, a.route_scale, a.experts + row * int64_t{p.top},
                          a.weights + row * int64_t{p.top});
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(done, 1) == static_cast<int>(gridDim.x) - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  make_lists(p, shared, warp_sums);
}

constexpr int kGatherThreads = 256;

/// One block a slot.
__global__ void __launch_bounds__(kGatherThreads)
    gather_row(const __grid_constant__ MoePlan p, const Bf16* x, Bf16* slot_x, int64_t d) {
  const int64_t slot = blockIdx.x;
  const int row = p.slot_rows[slot];
  if (row < 0 || row >= p.rows) return;
  const auto* from = reinterpret_cast<const uint4*>(x + row * d);
  auto* to = reinterpret_cast<uint4*>(slot_x + slot * d);
  for (int64_t i = threadIdx.x; i < d / 8; i += kGatherThreads) to[i] = from[i];
}

constexpr int kSumThreads = 128;

/// Eight columns a thread. Grid: (rows, parts of a row).
__global__ void __launch_bounds__(kSumThreads)
    sum_row(const __grid_constant__ MoePlan p, const Bf16* out, Bf16* y, int64_t d) {
  const int64_t column = (blockIdx.y * int64_t{kSumThreads} + threadIdx.x) * 8;
  if (column >= d) return;
  const int row = blockIdx.x;
  float sums[8] = {};
  const int count = p.top + (p.shared ? 1 : 0);
  for (int i = 0; i < count; ++i) {
    const int slot = i < p.top ? p.row_slots[row * p.top + i] : p.rows * p.top + row;
    if (slot < 0) continue;
    const uint4 v = *reinterpret_cast<const uint4*>(out + slot * d + column);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      sums[2 * w] += __uint_as_float(words[w] << 16);
      sums[2 * w + 1] += __uint_as_float(words[w] & 0xffff0000u);
    }
  }
  uint32_t words[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    words[w] = static_cast<uint32_t>(Bf16(sums[2 * w]).bits) |
               static_cast<uint32_t>(Bf16(sums[2 * w + 1]).bits) << 16;
  }
  *reinterpret_cast<uint4*>(y + row * d + column) =
      make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace

Status make_plan(KernelContext& ctx, const MoePlan& plan) {
  const size_t shared = 2 * static_cast<size_t>(plan.expert_count) * sizeof(int);
  CEDAR_CHECK_OK(allow_shared("moe_experts", plan_step, shared));
  plan_step<<<1, kThreads, shared, stream_of(ctx)>>>(plan);
  return launched("moe_experts");
}

bool fits_choose(const MoePlan& plan) { return plan.expert_count <= 384; }

Status choose_and_plan(KernelContext& ctx, const RouteArgs& args) {
  const ArenaScope scope(*ctx.arena);
  auto* done = ctx.arena->allocate<int32_t>(1);
  CEDAR_CHECK_OK(check("moe_experts", cudaMemsetAsync(done, 0, sizeof(int32_t), stream_of(ctx))));
  const size_t shared = 2 * static_cast<size_t>(args.plan.expert_count) * sizeof(int);
  const auto blocks = static_cast<unsigned>(ceil_div(args.plan.rows, kThreads / 32));
  if (args.plan.expert_count <= 128) {
    choose_and_plan_step<4><<<blocks, kThreads, shared, stream_of(ctx)>>>(args, done);
  } else {
    choose_and_plan_step<12><<<blocks, kThreads, shared, stream_of(ctx)>>>(args, done);
  }
  return launched("moe_experts");
}

Status gather_slots(KernelContext& ctx, const MoePlan& plan, const Bf16* x, Bf16* slot_x,
                    int64_t d) {
  gather_row<<<static_cast<unsigned>(plan.slots()), kGatherThreads, 0, stream_of(ctx)>>>(plan, x,
                                                                                         slot_x, d);
  return launched("moe_experts");
}

Status sum_slots(KernelContext& ctx, const MoePlan& plan, const Bf16* out, Bf16* y, int64_t d) {
  const dim3 grid(static_cast<unsigned>(plan.rows),
                  static_cast<unsigned>(ceil_div(d, kSumThreads * 8)));
  sum_row<<<grid, kSumThreads, 0, stream_of(ctx)>>>(plan, out, y, d);
  return launched("moe_experts");
}

}  // namespace cedar::kernels::cuda
