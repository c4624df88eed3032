#pragma once
// What every transformer layer does, of the backbone and of the drafter alike: mHC around a sublayer, query and
// window projections, attention with grouped output, experts.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "engine/loaded_model.h"
#include "kernels/hyper_connection.h"
#include "kernels/kernel_context.h"
#include "kernels/paged_rows.h"
#include "kernels/quantize.h"

namespace cedar::engine {

/// What a sublayer leaves for its end (hc_post), in memory that outlives the sublayer.
struct SublayerEnd {
  Bf16* y = nullptr;               // [rows, hidden]
  kernels::SlotSum slots;          // instead of y where `out` is set
  kernels::RingWriteParams ring;   // window rows to keep, where `chunk_rows` is set
  float* post = nullptr;           // [rows, copies]
  float* mix = nullptr;            // [rows, copies, copies]
  uint8_t* window_rows = nullptr;  // [rows, packed Q8 row]
  bool summed = true;              // whether the sublayer wrote y, not slots
};

/// The residual state of a batch's rows between layers.
struct StreamState {
  Bf16* x = nullptr;           // [rows, copies, hidden]
  const float* pre = nullptr;  // [rows, copies]: pre-mix handed from the last sublayer to the next
  /// A sublayer whose end was left to the next one's beginning: one launch less on a GPU. x is only complete without one.
  std::optional<kernels::HcPostParams> open;
  // Of the last sublayer and the next: an end is read while the next one is written.
  std::array<SublayerEnd, 2> ends;
  int turn = 0;
};

struct SublayerInput {
  const Bf16* u = nullptr;   // [rows, hidden], normed
  Bf16* u_values = nullptr;  // CUDA: of its Q8 codes; null on the CPU
};
/// Writes end.y, or end.slots where their memory is set; may ask for window rows to be kept.
using Sublayer = std::function<Status(const SublayerInput& in, SublayerEnd& end)>;

/// mHC before, the sublayer, mHC after: `state` is updated in place. `open`: the end may wait for the next sublayer or
/// close_sublayer(), where that saves a launch.
Status run_sublayer(kernels::KernelContext& ctx, const model::ModelConfig& config,
                    const HcLayerWeights& hc, const DeviceTensor& norm, StreamState& state,
                    int64_t rows, const Sublayer& sublayer, bool open = false);
/// Does what run_sublayer() left to be done, if anything.
Status close_sublayer(kernels::KernelContext& ctx, StreamState& state);

/// A layer's projections of its normed input u.
struct Projections {
  kernels::Q8Rows qr;              // [rows, q rank]: input of wq_b and of the indexer's wq_b
  Bf16* q = nullptr;               // [rows, heads, head_dim], rotated by attend() on CUDA
  uint8_t* window_rows = nullptr;  // [rows, window_row_bytes] packed Q8, norm and rotation applied
};
/// `window_memory`: for window_rows; null: the arena's. On CUDA q is left for attend() to rotate, and qr has values alone.
Result<Projections> project(kernels::KernelContext& ctx, const model::ModelConfig& config,
                            const LayerWeights& weights, const SublayerInput& in,
                            const int64_t* positions, const float* inv_freq, int64_t rows,
                            uint8_t* window_memory = nullptr);

/// Window rows of position i from another source than the layer's own input (the drafter's context).
Result<uint8_t*> window_rows(kernels::KernelContext& ctx, const model::ModelConfig& config,
                             const LayerWeights& weights, const kernels::Q8Rows& x,
                             const int64_t* positions, const float* inv_freq, int64_t rows,
                             uint8_t* window_memory = nullptr);

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
/// Router and experts: MoE(u) to end.y, or end.slots. Returns the routing, valid like all arena memory.
Result<RoutedExperts> feed_forward(kernels::KernelContext& ctx, const model::ModelConfig& config,
                                   const LayerWeights& weights, int64_t top,
                                   const uint8_t* image_mask, const SublayerInput& in, int64_t rows,
                                   SublayerEnd& end);

}  // namespace cedar::engine
