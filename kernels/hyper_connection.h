#pragma once
// Single-pass manifold hyper-connections (spec/model.md 6). `copies` parallel streams of width d.

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/kernel_context.h"
#include "kernels/kv_write.h"
#include "kernels/moe.h"

namespace cedar::kernels {

constexpr int64_t kMaxHcCopies = 8;

struct HcWeights {
  const float* fn = nullptr;     // [2 * copies + copies^2, copies * d]
  const float* base = nullptr;   // [2 * copies + copies^2]
  const float* scale = nullptr;  // [3]: pre, post, mix
};

/// End of a sublayer: x'[k] = bf16(post[k] * y + sum_j B[j][k] * x[j]). x_out may equal x.
struct HcPostParams {
  const Bf16* x = nullptr;      // [rows, copies, d]
  const Bf16* y = nullptr;      // [rows, d] sublayer output
  const float* post = nullptr;  // [rows, copies]
  const float* mix = nullptr;   // [rows, copies, copies]
  Bf16* x_out = nullptr;        // [rows, copies, d]
  int64_t rows = 0, copies = 4, d = 0;
  /// CUDA: y is the sum of a row's slots (moe.h), rounded; `y` is not read.
  const SlotSum* slots = nullptr;
  /// Window rows to keep, in the same launch on CUDA: a sublayer's last act besides.
  const RingWriteParams* ring = nullptr;
};
Status hc_post(KernelContext& ctx, const HcPostParams& p);

/// Start of a sublayer: coefficients of x, and the sublayer's normalised input
///   u = RMSNorm(bf16(sum_j pre_in[j] * x[j])).
struct HcPreParams {
  const Bf16* x = nullptr;        // [rows, copies, d]
  const float* pre_in = nullptr;  // [rows, copies], from the previous sublayer
  HcWeights weights;
  const Bf16* norm_weight = nullptr;  // [d]
  float norm_eps = 0;
  float hc_eps = 0;
  int32_t sinkhorn_iterations = 20;
  Bf16* u = nullptr;  // [rows, d]
  /// CUDA, or null: the values of u's Q8 codes, [rows, d] (Q8Rows::values), in the same launch.
  Bf16* u_values = nullptr;
  float* pre = nullptr;   // [rows, copies], for the next sublayer
  float* post = nullptr;  // [rows, copies]
  float* mix = nullptr;   // [rows, copies, copies]: B[j][k]
  int64_t rows = 0, copies = 4, d = 0;
  /// The end of the sublayer before, done first, in the same launch where a GPU has few rows. REQUIRES: after->x_out == x.
  const HcPostParams* after = nullptr;
};
Status hc_pre(KernelContext& ctx, const HcPreParams& p);

/// u = bf16(sum_j pre[j] * x[j]); with norm_weight set, followed by RMSNorm (the LM head's input, the
/// encoder boundary). `raw`, if set, receives the unnormalised u.
struct HcCollapseParams {
  const Bf16* x = nullptr;     // [rows, copies, d]
  const float* pre = nullptr;  // [rows, copies]
  const Bf16* norm_weight = nullptr;
  float norm_eps = 0;
  Bf16* u = nullptr;    // [rows, d]
  Bf16* raw = nullptr;  // [rows, d] or null
  int64_t rows = 0, copies = 4, d = 0;
};
Status hc_collapse(KernelContext& ctx, const HcCollapseParams& p);

/// y = bf16(mean over the copies of x): the drafter's view of a target layer's input.
struct HcMeanParams {
  const Bf16* x = nullptr;  // [rows, copies, d]
  Bf16* y = nullptr;        // [rows, y_stride]
  int64_t y_stride = 0;
  int64_t rows = 0, copies = 4, d = 0;
};
Status hc_mean(KernelContext& ctx, const HcMeanParams& p);

/// Coefficients from given mixes m = (fn z) rho: the Sinkhorn part alone (golden unit `sinkhorn`).
/// Host memory, one row.
void hc_split(const float* m, const float* base, const float* scale, int64_t copies, float hc_eps,
              int32_t iterations, float* pre, float* post, float* mix);

}  // namespace cedar::kernels
