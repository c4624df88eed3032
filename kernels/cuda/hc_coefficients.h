#pragma once
// What hc_pre makes of a row's sums where there are four copies.

#include "kernels/cuda/device_math.h"
#include "kernels/hyper_connection.h"

namespace cedar::kernels::cuda {

constexpr int kHcCopies = 4;
constexpr int kHcOutputs = 24;  // pre, post and mix

/// Coefficients of one row from its 26 sums, one warp. Lane 4 j + k holds element (j, k) of the mix.
__device__ inline void write_coefficients(const HcPreParams& p, int64_t row, float sum) {
  const int lane = threadIdx.x % kWarp;
  const float factor =
      norm_factor(__shfl_sync(kAllLanes, sum, kHcOutputs), kHcCopies * p.d, p.norm_eps);
  const float m = __fmul_rn(sum, factor);
  const int output = min(lane, kHcOutputs - 1);
  const int kind = min(output / kHcCopies, 2);
  const float shifted = __fadd_rn(__fmul_rn(m, p.weights.scale[kind]), p.weights.base[output]);
  if (lane < kHcCopies) {
    p.pre[row * kHcCopies + lane] = __fadd_rn(sigmoid(shifted), p.hc_eps);
  } else if (lane < 2 * kHcCopies) {
    p.post[row * kHcCopies + lane - kHcCopies] = __fmul_rn(2.0f, sigmoid(shifted));
  }
  float b = __shfl_sync(kAllLanes, shifted, 2 * kHcCopies + lane % (kHcCopies * kHcCopies));
  const auto across = [](float v, int step) {
    v += __shfl_xor_sync(kAllLanes, v, step);
    return v + __shfl_xor_sync(kAllLanes, v, 2 * step);
  };
  float largest = fmaxf(b, __shfl_xor_sync(kAllLanes, b, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
  b = exp_exact(__fsub_rn(b, largest));
  // First row step: eps joins the quotient; every later step adds it to the divisor.
  b = __fdiv_rn(b, across(b, 1)) + p.hc_eps;
  b = __fdiv_rn(b, across(b, 4) + p.hc_eps);
  for (int i = 1; i < p.sinkhorn_iterations; ++i) {
    b = __fdiv_rn(b, across(b, 1) + p.hc_eps);
    b = __fdiv_rn(b, across(b, 4) + p.hc_eps);
  }
  if (lane < kHcCopies * kHcCopies) p.mix[row * kHcCopies * kHcCopies + lane] = b;
}

}  // namespace cedar::kernels::cuda
