// hc_post, hc_collapse and hc_mean: one pass over the copies, memory bound.

#include "core/units.h"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/hc_post.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// Columns blockIdx.y * kThreads * kWidth ... of row blockIdx.x; the blocks beyond the columns keep window rows.
template <int kWidth, int kCopies>
__global__ void __launch_bounds__(kThreads)
    post_kernel(const __grid_constant__ PostArgs a, unsigned column_blocks) {
  const int64_t row = blockIdx.x;
  if (blockIdx.y >= column_blocks) {
    keep_window_row(a.ring, row, kThreads);
    return;
  }
  const int64_t c = (blockIdx.y * int64_t{kThreads} + threadIdx.x) * kWidth;
  if (c >= a.p.d) return;
  finish_columns<kWidth, kCopies>(a, row, c, [&](int k, const float(&sum)[kWidth]) {
    store_columns(a.p.x_out + (row * a.p.copies + k) * a.p.d + c, sum);
  });
}

template <int kWidth>
__device__ __forceinline__ void collapse(const Bf16* x, const float* weights, int64_t copies,
                                         int64_t d, float (&sum)[kWidth]) {
  for (int64_t j = 0; j < copies; ++j) {
    float v[kWidth];
    load_columns(x + j * d, v);
    const float weight = weights[j];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float part = __fmul_rn(v[i], weight);
      sum[i] = j == 0 ? part : __fadd_rn(sum[i], part);
    }
  }
}

/// One block a row; u first holds the unnormalised values.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) collapse_kernel(HcCollapseParams p) {
  __shared__ float partial[kThreads / kWarp];
  const int64_t row = blockIdx.x;
  const Bf16* x = p.x + row * p.copies * p.d;
  const float* pre = p.pre + row * p.copies;
  Bf16* u = p.u + row * p.d;
  float squares = 0;
  for (int64_t c = threadIdx.x * kWidth; c < p.d; c += kThreads * kWidth) {
    float v[kWidth];
    collapse(x + c, pre, p.copies, p.d, v);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      v[i] = round_to_bf16(v[i]);
      squares = fmaf(v[i], v[i], squares);
    }
    store_columns(u + c, v);
    if (p.raw != nullptr) store_columns(p.raw + row * p.d + c, v);
  }
  if (p.norm_weight == nullptr) return;
  const float factor = norm_factor(block_sum<kThreads>(squares, partial), p.d, p.norm_eps);
  for (int64_t c = threadIdx.x * kWidth; c < p.d; c += kThreads * kWidth) {
    float v[kWidth], w[kWidth];
    load_columns(u + c, v);
    load_columns(p.norm_weight + c, w);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) v[i] = __fmul_rn(w[i], __fmul_rn(v[i], factor));
    store_columns(u + c, v);
  }
}

__global__ void __launch_bounds__(kThreads) mean_kernel(HcMeanParams p) {
  const int64_t row = blockIdx.x;
  const Bf16* x = p.x + row * p.copies * p.d;
  for (int64_t c = threadIdx.x; c < p.d; c += kThreads) {
    float sum = widen(x[c]);
    for (int64_t j = 1; j < p.copies; ++j) sum = __fadd_rn(sum, widen(x[j * p.d + c]));
    p.y[row * p.y_stride + c] = Bf16(__fdiv_rn(sum, static_cast<float>(p.copies)));
  }
}

}  // namespace

Status hc_post(KernelContext& ctx, const HcPostParams& p) {
  const PostArgs a = post_args(p);
  const bool vector = has_vectors(a);
  const auto blocks = static_cast<unsigned>(ceil_div(p.d, kThreads * (vector ? 8 : 1)));
  const dim3 grid(static_cast<unsigned>(p.rows), blocks + (p.ring != nullptr ? 1 : 0));
  if (vector && p.copies == 4) {
    post_kernel<8, 4><<<grid, kThreads, 0, stream_of(ctx)>>>(a, blocks);
  } else if (vector) {
    post_kernel<8, 0><<<grid, kThreads, 0, stream_of(ctx)>>>(a, blocks);
  } else {
    post_kernel<1, 0><<<grid, kThreads, 0, stream_of(ctx)>>>(a, blocks);
  }
  return launched("hc_post");
}

Status hc_collapse(KernelContext& ctx, const HcCollapseParams& p) {
  const bool vector = p.d % 8 == 0 && aligned16(p.x) && aligned16(p.u) && aligned16(p.raw) &&
                      aligned16(p.norm_weight);
  const auto blocks = static_cast<unsigned>(p.rows);
  if (vector) {
    collapse_kernel<8><<<blocks, kThreads, 0, stream_of(ctx)>>>(p);
  } else {
    collapse_kernel<1><<<blocks, kThreads, 0, stream_of(ctx)>>>(p);
  }
  return launched("hc_collapse");
}

Status hc_mean(KernelContext& ctx, const HcMeanParams& p) {
  mean_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream_of(ctx)>>>(p);
  return launched("hc_mean");
}

}  // namespace cedar::kernels::cuda
