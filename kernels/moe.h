#pragma once
// Router and experts (spec/model.md 8).

#include <cstdint>
#include <span>

#include "core/float_formats.h"
#include "kernels/quantize.h"
#include "kernels/weights.h"

namespace cedar::kernels {

/// s = sqrt(softplus(gate x)) in fp32; the `top` largest of s + bias (ties: lower expert) in order of that
/// score; weight = s / (sum of selected s + 1e-20) * route_scale.
struct MoeGateParams {
  const Bf16* x = nullptr;              // [rows, d]
  const PackedWeight* gate = nullptr;   // bf16 [experts, d]
  const float* bias = nullptr;          // [experts]
  const float* bias_image = nullptr;    // [experts]; used for rows with image_mask
  const uint8_t* image_mask = nullptr;  // [rows] or null
  int32_t* experts = nullptr;           // [rows, top]
  float* weights = nullptr;             // [rows, top]
  int64_t rows = 0, d = 0, expert_count = 0, top = 0;
  float route_scale = 1;
};
Status moe_gate(KernelContext& ctx, const MoeGateParams& p);

struct ExpertWeights {
  PackedWeight w1;  // gate
  PackedWeight w3;  // up
  PackedWeight w2;  // down
};

/// What a back end looks up by expert while a step runs, made once at load; empty on the CPU. Points into the experts'
/// buffers: they must outlive it unmoved.
struct ExpertTable {
  Buffer entries;
  int64_t inner = 0;  // the widest expert's
};
Result<ExpertTable> expert_table(KernelContext& ctx, std::span<const ExpertWeights> routed,
                                 const ExpertWeights* shared);

/// What moe_experts() leaves to be summed: bf16(sum over a row's entries of row_slots of the rows of `out`, then of the shared
/// expert's row).
struct SlotSum {
  Bf16* out = nullptr;           // [rows * (top + shared), d]; the shared expert's rows come last
  int32_t* row_slots = nullptr;  // [rows, top]; -1: none
  int64_t rows = 0, top = 0;
  bool shared = false;
};

/// y = bf16( sum over the chosen experts, increasing id, of w2(bf16(silu(g) * u * weight)) + shared(x) ) with
/// g = min(w1 x, clamp), u = clamp(w3 x, -clamp, clamp), every linear's output rounded to bf16.
struct MoeExpertsParams {
  Q8Rows xq;  // [rows, d]
  const int32_t* experts =
      nullptr;  // [rows, top], in [0, routed.size()); CUDA: others count as weight 0
  const float* weights = nullptr;  // [rows, top]
  std::span<const ExpertWeights> routed;
  const ExpertWeights* shared = nullptr;
  const ExpertTable* table =
      nullptr;  // of `routed` and `shared`; CUDA: null makes one for the call
  float clamp = 0;
  Bf16* y = nullptr;  // [rows, d]
  int64_t rows = 0, d = 0, top = 0;
  /// CUDA: chooses the experts first, into route->experts and route->weights; `experts` and `weights` are not read.
  const MoeGateParams* route = nullptr;
  /// CUDA: instead of y. `out` and `row_slots` are the caller's memory.
  const SlotSum* slots = nullptr;
};
Status moe_experts(KernelContext& ctx, const MoeExpertsParams& p);

}  // namespace cedar::kernels
