#pragma once
// What every transformer layer does, of the backbone and of the drafter alike: mHC around a sublayer, query and
// window projections, attention with grouped output, experts.

#include <cstdint>
#include <functional>

#include "engine/loaded_model.h"
#include "kernels/kernel_context.h"
#include "kernels/paged_rows.h"
#include "kernels/quantize.h"

namespace cedar::engine {

/// The residual state of a batch's rows between layers.
struct StreamState {
  Bf16* x = nullptr;           // [rows, copies, hidden]
  const float* pre = nullptr;  // [rows, copies]: pre-mix handed from the last sublayer to the next
};

/// y = f(u); both [rows, hidden].
using Sublayer = std::function<Status(const Bf16* u, Bf16* y)>;

/// mHC before, the sublayer, mHC after: `state` is updated in place.
Status run_sublayer(kernels::KernelContext& ctx, const model::ModelConfig& config,
                    const HcLayerWeights& hc, const DeviceTensor& norm, StreamState& state,
                    int64_t rows, const Sublayer& sublayer);

/// A layer's projections of its normed input u.
struct Projections {
  kernels::Q8Rows qr;              // [rows, q rank]: input of wq_b and of the indexer's wq_b
  Bf16* q = nullptr;               // [rows, heads, head_dim], rotated
  uint8_t* window_rows = nullptr;  // [rows, window_row_bytes] packed Q8, norm and rotation applied
};
Result<Projections> project(kernels::KernelContext& ctx, const model::ModelConfig& config,
                            const LayerWeights& weights, const Bf16* u, const int64_t* positions,
                            const float* inv_freq, int64_t rows);

/// Window rows of position i from another source than the layer's own input (the drafter's context).
Result<uint8_t*> window_rows(kernels::KernelContext& ctx, const model::ModelConfig& config,
                             const LayerWeights& weights, const kernels::Q8Rows& x,
                             const int64_t* positions, const float* inv_freq, int64_t rows);

/// The global rows a query attends to besides its window.
struct GlobalView {
  const int32_t* topk = nullptr;  // [rows, k]; null: window only
  int64_t k = 0;
  kernels::PagedRows rows;
  const int32_t* sequences = nullptr;  // [rows]
};

struct AttendInput {
  const Projections* projections = nullptr;
  kernels::WindowRings rings;
  const kernels::WindowSpan* spans = nullptr;  // [rows]
  GlobalView global;
  const int64_t* positions = nullptr;
  const float* inv_freq = nullptr;
  int64_t rows = 0;
};
/// Sparse attention, inverse rotation, grouped wo_a, wo_b -> y [rows, hidden].
Status attend(kernels::KernelContext& ctx, const model::ModelConfig& config,
              const LayerWeights& weights, const AttendInput& in, Bf16* y);

struct RoutedExperts {
  const int32_t* experts = nullptr;  // [rows, top]
  const float* weights = nullptr;    // [rows, top]
};
/// Router and experts: y = MoE(u). Returns the routing, valid like all arena memory.
Result<RoutedExperts> feed_forward(kernels::KernelContext& ctx, const model::ModelConfig& config,
                                   const LayerWeights& weights, int64_t top,
                                   const uint8_t* image_mask, const Bf16* u, int64_t rows, Bf16* y);

}  // namespace cedar::engine
