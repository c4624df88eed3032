#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <bool kVector>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(RmsNormParams p) {
  __shared__ float partial[kThreads / kWarp];
  const Bf16* x = p.x + blockIdx.x * p.x_stride;
  Bf16* y = p.y + blockIdx.x * p.y_stride;
  float sum = 0;
  if constexpr (kVector) {
    for (int64_t c = threadIdx.x * 8; c < p.columns; c += kThreads * 8) {
      float v[8];
      widen8(load8(x + c), v);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(v[i], v[i], sum);
    }
  } else {
    for (int64_t c = threadIdx.x; c < p.columns; c += kThreads) {
      const float v = widen(x[c]);
      sum = fmaf(v, v, sum);
    }
  }
  const float factor = norm_factor(block_sum<kThreads>(sum, partial), p.columns, p.eps);
  // Every thread writes only what it read itself: x may be y.
  if constexpr (kVector) {
    for (int64_t c = threadIdx.x * 8; c < p.columns; c += kThreads * 8) {
      float v[8], w[8];
      widen8(load8(x + c), v);
      widen8(load8(p.weight + c), w);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = __fmul_rn(w[i], __fmul_rn(v[i], factor));
      store8(y + c, round8(v));
    }
  } else {
    for (int64_t c = threadIdx.x; c < p.columns; c += kThreads) {
      y[c] = Bf16(__fmul_rn(widen(p.weight[c]), __fmul_rn(widen(x[c]), factor)));
    }
  }
}

}  // namespace

Status rms_norm(KernelContext& ctx, const RmsNormParams& p) {
  const bool vector = p.columns % 8 == 0 && p.x_stride % 8 == 0 && p.y_stride % 8 == 0 &&
                      aligned16(p.x) && aligned16(p.y) && aligned16(p.weight);
  const auto blocks = static_cast<unsigned>(p.rows);
  if (vector) {
    rms_norm_kernel<true><<<blocks, kThreads, 0, stream_of(ctx)>>>(p);
  } else {
    rms_norm_kernel<false><<<blocks, kThreads, 0, stream_of(ctx)>>>(p);
  }
  return launched("rms_norm");
}

}  // namespace cedar::kernels::cuda
