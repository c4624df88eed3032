#pragma once
// The running softmax of sparse attention, in fragments of wgmma.h.

#include <cstdint>

#include "kernels/cuda/device_math.h"
#include "kernels/cuda/sparse_attention_list.h"

namespace cedar::kernels::cuda::sparse_pair {

// What decoded rows lack (packed_rows.h).
constexpr float kValueScale = 0x1p16f;
constexpr float kLog2e = 1.44269504f;

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The running softmax of heads g and g + 8 of a warp's 16, in powers of two: scores count times `scale`.
struct Softmax {
  float scale;
  float maximum[2] = {-1e30f, -1e30f};
  float total[2] = {};  // of this lane's columns
  float alpha[2];

  /// s: the block's scores. p: what its values are to be multiplied with, in a's fragments.
  __device__ __forceinline__ void step(float (&s)[32], int count, uint32_t (&p)[4][4]) {
    if (count < kListRows) {
      const int c = threadIdx.x % 4;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if (i / 4 * 8 + 2 * c + i % 2 >= count) s[i] = -__int_as_float(0x7f800000);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = maximum[half];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        largest = fmaxf(largest, fmaxf(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      const float offset = -largest * scale;
      alpha[half] = exp2_fast(fmaf(maximum[half], scale, offset));
      maximum[half] = largest;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float low = exp2_fast(fmaf(s[4 * j + 2 * half], scale, offset));
        const float high = exp2_fast(fmaf(s[4 * j + 2 * half + 1], scale, offset));
        sum += low + high;
        p[j / 2][j % 2 * 2 + half] = pack_bf16(low, high);
      }
      total[half] = fmaf(total[half], alpha[half], sum);
    }
  }

  /// What the sums of values are to be multiplied with. `sink`: the heads', in powers of two.
  __device__ __forceinline__ float2 factor(const float (&sink)[2]) const {
    float f[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = total[i];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      f[i] = kValueScale / (sum + exp2_fast(sink[i] - maximum[i] * scale));
    }
    return make_float2(f[0], f[1]);
  }
};

}  // namespace cedar::kernels::cuda::sparse_pair
