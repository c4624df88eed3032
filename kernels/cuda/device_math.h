#pragma once
// Arithmetic of the row-wise kernels. Where the CPU back end multiplies and adds apart, so does this:
// element-wise results are the same bits. Sums over a row are taken in an order of their own, fixed by the
// block's size.

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/cpu/exp.h"

namespace cedar::kernels::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float widen(Bf16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}

/// Two values rounded to nearest even, `low` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ float low_half(uint32_t word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high_half(uint32_t word) {
  return __uint_as_float(word & 0xffff0000u);
}

/// Eight neighbouring bf16.
__device__ __forceinline__ void widen8(const uint4& v, float (&x)[8]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = low_half(words[i]);
    x[2 * i + 1] = high_half(words[i]);
  }
}
__device__ __forceinline__ uint4 round8(const float (&x)[8]) {
  return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                    pack_bf16(x[6], x[7]));
}
__device__ __forceinline__ uint4 load8(const Bf16* p) { return *reinterpret_cast<const uint4*>(p); }
__device__ __forceinline__ void store8(Bf16* p, const uint4& v) {
  *reinterpret_cast<uint4*>(p) = v;
}

/// a * b + c in two roundings.
__device__ __forceinline__ float multiply_add(float a, float b, float c) {
  return __fadd_rn(__fmul_rn(a, b), c);
}

/// e^x, the CPU back end's bits (kernels/cpu/exp.h).
__device__ __forceinline__ float exp_exact(float x) {
  using namespace cpu::exp_constants;
  if (x < kLowest) return 0;
  const float clamped = fminf(x, kHighest);
  const float shifted = multiply_add(clamped, kLog2e, kRound);
  const float n = __fsub_rn(shifted, kRound);
  float r = __fsub_rn(clamped, __fmul_rn(n, kLn2High));
  r = __fsub_rn(r, __fmul_rn(n, kLn2Low));
  float p = multiply_add(kC7, r, kC6);
  p = multiply_add(p, r, kC5);
  p = multiply_add(p, r, kC4);
  p = multiply_add(p, r, kC3);
  p = multiply_add(p, r, kC2);
  p = __fadd_rn(multiply_add(p, __fmul_rn(r, r), r), 1.0f);
  const int32_t integer = static_cast<int32_t>(__float_as_uint(shifted) - __float_as_uint(kRound));
  const int32_t half = integer >> 1;
  const float first = __uint_as_float(static_cast<uint32_t>(half + 127) << 23);
  const float second = __uint_as_float(static_cast<uint32_t>(integer - half + 127) << 23);
  return __fmul_rn(__fmul_rn(p, first), second);
}

/// 1 / (1 + e^-x) without overflow.
__device__ __forceinline__ float sigmoid(float x) {
  const float e = exp_exact(-fabsf(x));
  return __fdiv_rn(x < 0 ? e : 1.0f, __fadd_rn(1.0f, e));
}

/// 1 / sqrt(mean + eps) of a sum of `count` squares.
__device__ __forceinline__ float norm_factor(float square_sum, int64_t count, float eps) {
  const float mean = __fdiv_rn(square_sum, static_cast<float>(count));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(kAllLanes, v, step);
  return v;
}

/// The sum over a block of kThreads threads, in every thread. `partial` holds kThreads / 32 floats; calls may
/// follow each other with the same one.
template <int kThreads>
__device__ __forceinline__ float block_sum(float v, float* partial) {
  constexpr int kWarps = kThreads / kWarp;
  v = warp_sum(v);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = v;
  __syncthreads();
  float sum = partial[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum += partial[w];
  return sum;
}

/// cos and sin of one pair (spec/model.md 4): one fp32 product, evaluated in double and rounded.
__device__ __forceinline__ float2 rotation(int64_t position, float inv_freq, bool inverse) {
  const float angle = __fmul_rn(static_cast<float>(position), inv_freq);
  double s, c;
  sincos(static_cast<double>(angle), &s, &c);
  const float sine = static_cast<float>(s);
  return make_float2(static_cast<float>(c), inverse ? -sine : sine);
}
/// (a, b) turned by `r`, not yet rounded.
__device__ __forceinline__ float2 rotate(float a, float b, float2 r) {
  return make_float2(__fsub_rn(__fmul_rn(a, r.x), __fmul_rn(b, r.y)),
                     __fadd_rn(__fmul_rn(a, r.y), __fmul_rn(b, r.x)));
}

/// Host and device: whether 16-byte accesses may be used.
inline bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace cedar::kernels::cuda
