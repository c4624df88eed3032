#pragma once
// How the rows of a step are spread over the experts, on the device and without the host.
//
// A slot is one row at one expert. Slots of an expert are consecutive, the shared expert's come last, one a
// row and in order. A tile is up to `columns` consecutive slots of one expert: what one block multiplies with
// a part of its weights. The shared expert's tiles come first: FP8 takes longest.

#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/moe.h"

namespace cedar::kernels::cuda {

/// An expert's packed weights (weight_layout.h) on the device: w1, w3, w2.
struct ExpertEntry {
  const uint8_t* codes[3];
  float scale[3];
  int32_t inner;
  int32_t fp4;
  int32_t unused;
};

struct MoeTile {
  ExpertEntry expert;
  int32_t first_slot;
  int32_t slots;
};

struct MoePlan {
  // By the caller.
  const int32_t* experts = nullptr;    // [rows, top]
  const float* weights = nullptr;      // [rows, top]
  const ExpertEntry* table = nullptr;  // [expert_count], and the shared expert's where `shared`
  int32_t rows = 0, top = 0, expert_count = 0;
  bool shared = false;
  int32_t columns = 0;
  // By make_plan(), in memory of the caller's.
  int32_t* slot_rows = nullptr;   // [slots]
  float* slot_weights = nullptr;  // [slots]
  int32_t* row_slots =
      nullptr;               // [rows, top], experts increasing; -1 where the expert does not exist
  MoeTile* tiles = nullptr;  // [most_tiles]
  int32_t* tile_count = nullptr;
  int32_t* parts_done = nullptr;  // [most_tiles] zeros: how much of a tile's activations is there
  int32_t* next_item = nullptr;   // zero: how many items blocks have asked for

  __host__ __device__ int64_t slots() const { return int64_t{rows} * (top + (shared ? 1 : 0)); }
  /// A bound that the host can know.
  __host__ __device__ int64_t most_tiles() const {
    const int64_t routed = int64_t{rows} * top;
    const int64_t partial = routed < expert_count ? routed : expert_count;
    return partial + routed / columns + (shared ? (rows + columns - 1) / columns : 0);
  }
};

/// Fills the plan's lists.
Status make_plan(KernelContext& ctx, const MoePlan& plan);

/// slot_x [slots, d]: every slot's row of x [rows, d], so that a tile of slots is a box of a matrix.
/// REQUIRES: d a multiple of 8. Slots of experts that do not exist are not written.
Status gather_slots(KernelContext& ctx, const MoePlan& plan, const Bf16* x, Bf16* slot_x,
                    int64_t d);

/// Few rows: choice, plan and slot_x in one launch. `gate`: the router's products, fp32 [rows, expert_count].
struct RouteArgs {
  MoePlan plan;  // its experts and weights are written
  const float* gate = nullptr;
  const float* bias = nullptr;
  const float* bias_image = nullptr;
  const uint8_t* image_mask = nullptr;
  int32_t* experts = nullptr;
  float* weights = nullptr;
  float route_scale = 1;
  const Bf16* x = nullptr;
  Bf16* slot_x = nullptr;
  int64_t d = 0;
};
/// Many rows: choice and plan in one launch.
bool fits_choose(const MoePlan& plan);
Status choose_and_plan(KernelContext& ctx, const RouteArgs& args);
bool fits_route(const MoePlan& plan);
Status route(KernelContext& ctx, const RouteArgs& args);

/// y [rows, d] = bf16(sum of a row's slots of `out` [slots, d], in row_slots' order, the shared expert's
/// last).
Status sum_slots(KernelContext& ctx, const MoePlan& plan, const Bf16* out, Bf16* y, int64_t d);

}  // namespace cedar::kernels::cuda
