// Choice of experts, plan and gathering for few rows, in one launch. Every block makes the choice and the plan for
// itself, in shared memory and in an order that all share, then gathers some of the slots; the first one writes the plan.

#include <algorithm>

#include "core/units.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/choose_experts.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/moe_plan.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kMostExperts = 384;
constexpr int kMostRouted = 2048;  // rows * top

struct Shared {
  int32_t experts[kMostRouted];
  float weights[kMostRouted];
  int32_t slots[kMostRouted];
  int32_t counts[kMostExperts];
  int32_t first_slot[kMostExperts];
  int32_t first_tile[kMostExperts];
};

__global__ void __launch_bounds__(kThreads) route_step(const __grid_constant__ RouteArgs a) {
  extern __shared__ uint8_t storage[];
  Shared& s = *reinterpret_cast<Shared*>(storage);
  const MoePlan& p = a.plan;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool writes = blockIdx.x == 0;
  const int routed = p.rows * p.top;
  const int shared_tiles = p.shared ? (p.rows + p.columns - 1) / p.columns : 0;
  for (int row = warp; row < p.rows; row += kThreads / 32) {
    const bool image = a.image_mask != nullptr && a.image_mask[row] != 0;
    choose_experts<kMostExperts / 32>(
        a.gate + row * int64_t{p.expert_count}, image ? a.bias_image : a.bias, p.expert_count,
        p.top, a.route_scale, s.experts + row * p.top, s.weights + row * p.top);
  }
  for (int e = threadIdx.x; e < p.expert_count; e += kThreads) s.counts[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < routed; i += kThreads) atomicAdd(&s.counts[s.experts[i]], 1);
  __syncthreads();
  // First slot and first tile of each expert: one warp goes along them.
  if (warp == 0) {
    int slots = 0, tiles = shared_tiles;
    for (int base = 0; base < p.expert_count; base += 32) {
      const int e = base + lane;
      const int count = e < p.expert_count ? s.counts[e] : 0;
      const int of_tiles = (count + p.columns - 1) / p.columns;
      int slot = count, tile = of_tiles;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int x = __shfl_up_sync(~0u, slot, step), y = __shfl_up_sync(~0u, tile, step);
        if (lane >= step) slot += x, tile += y;
      }
      if (e < p.expert_count) {
        s.first_slot[e] = slots + slot - count;
        s.first_tile[e] = tiles + tile - of_tiles;
      }
      slots += __shfl_sync(~0u, slot, 31);
      tiles += __shfl_sync(~0u, tile, 31);
    }
    if (writes && lane == 0) *p.tile_count = tiles;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < routed; i += kThreads) {
    const int expert = s.experts[i];
    int before = 0;
    for (int j = 0; j < i; ++j) before += s.experts[j] == expert;
    s.slots[i] = s.first_slot[expert] + before;
  }
  __syncthreads();

  if (writes) {
    for (int e = threadIdx.x; e < p.expert_count; e += kThreads) {
      for (int begin = 0; begin < s.counts[e]; begin += p.columns) {
        MoeTile& tile = p.tiles[s.first_tile[e] + begin / p.columns];
        tile.expert = p.table[e];
        tile.first_slot = s.first_slot[e] + begin;
        tile.slots = min(p.columns, s.counts[e] - begin);
      }
    }
    for (int i = threadIdx.x; i < shared_tiles; i += kThreads) {
      MoeTile& tile = p.tiles[i];
      tile.expert = p.table[p.expert_count];
      tile.first_slot = routed + i * p.columns;
      tile.slots = min(p.columns, p.rows - i * p.columns);
    }
    if (threadIdx.x == 0) *p.next_item = 0;
    const int most = static_cast<int>(p.most_tiles());
    for (int i = threadIdx.x; i < most; i += kThreads) p.parts_done[i] = 0;
    for (int i = threadIdx.x; i < routed; i += kThreads) {
      const int row = i / p.top, expert = s.experts[i], slot = s.slots[i];
      int rank = 0;
      for (int j = row * p.top; j < (row + 1) * p.top; ++j) rank += s.experts[j] < expert;
      a.experts[i] = expert;
      a.weights[i] = s.weights[i];
      p.slot_rows[slot] = row;
      p.slot_weights[slot] = s.weights[i];
      p.row_slots[row * p.top + rank] = slot;
    }
    for (int row = threadIdx.x; p.shared && row < p.rows; row += kThreads) {
      p.slot_rows[routed + row] = row;
      p.slot_weights[routed + row] = 1.0f;
    }
  }
  const int total = routed + (p.shared ? p.rows : 0);
  const int pieces = static_cast<int>(a.d / 8);
  for (int i = blockIdx.x; i < total; i += gridDim.x) {
    const int row = i < routed ? i / p.top : i - routed, slot = i < routed ? s.slots[i] : i;
    const auto* from = reinterpret_cast<const uint4*>(a.x + row * a.d);
    auto* to = reinterpret_cast<uint4*>(a.slot_x + slot * a.d);
    for (int c = threadIdx.x; c < pieces; c += kThreads) to[c] = from[c];
  }
}

}  // namespace

bool fits_route(const MoePlan& plan) {
  return plan.expert_count <= kMostExperts && int64_t{plan.rows} * plan.top <= kMostRouted;
}

Status route(KernelContext& ctx, const RouteArgs& args) {
  CEDAR_CHECK_OK(allow_shared("moe_experts", route_step, sizeof(Shared)));
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(args.plan.slots(), multiprocessors()));
  route_step<<<blocks, kThreads, sizeof(Shared), stream_of(ctx)>>>(args);
  return launched("moe_experts");
}

}  // namespace cedar::kernels::cuda
