#pragma once
// Q8 in device code, for the quantiser and for epilogues that quantise what they computed.

#include <cstdint>

#include <cuda_bf16.h>

#include "core/float_formats.h"
#include "kernels/quantize.h"

namespace cedar::kernels::cuda {

constexpr float kQ8Floor = 1e-4f;

/// The scale's E8M0 byte for a group whose largest magnitude is `amax`; not finite: 255.
__device__ __forceinline__ uint32_t q8_scale(float amax) {
  if (!(amax < __int_as_float(0x7f800000))) return 255;
  return power_of_two_scale(fmaxf(amax, kQ8Floor), kReciprocal448);
}
/// 1 / scale and scale, exact; NaN for 255.
__device__ __forceinline__ float q8_inverse(uint32_t scale) {
  return __uint_as_float(scale == 255 ? 0x7fc00000u : (254 - scale) << 23);
}
__device__ __forceinline__ float q8_value(uint32_t scale) {
  return __uint_as_float(scale == 255 ? 0x7fc00000u : scale << 23);
}

/// Two values, divided by their scale, to E4M3 codes: `low` in the low byte.
__device__ __forceinline__ uint32_t e4m3_pair(float low, float high) {
#if __CUDA_ARCH__ < 890
  return float_to_e4m3(low) | static_cast<uint32_t>(float_to_e4m3(high)) << 8;
#else
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
#endif
}
/// Two E4M3 codes times `scale`, as a bf16 pair: exact.
__device__ __forceinline__ uint32_t e4m3_pair_values(uint32_t codes, float scale) {
#if __CUDA_ARCH__ < 890
  const float2 wide = make_float2(e4m3_to_float(static_cast<uint8_t>(codes)),
                                  e4m3_to_float(static_cast<uint8_t>(codes >> 8)));
#else
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes)));
  const float2 wide = __half22float2(*reinterpret_cast<const __half2*>(&halves));
#endif
  const __nv_bfloat162 pair = __floats2bfloat162_rn(wide.x * scale, wide.y * scale);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// max that turns NaN into infinity, so that a group with a NaN has no finite scale.
__device__ __forceinline__ float max_magnitude(float most, float x) {
  const float a = fabsf(x);
  return a <= most ? most : (a == a ? a : __int_as_float(0x7f800000));
}

/// Eight neighbouring bf16 of a row as the values of their Q8 codes; four neighbouring lanes share a group, all of them call.
__device__ __forceinline__ uint4 q8_values_of(const uint4& v) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  float amax = 0;
#pragma unroll
  for (const uint32_t word : words) {
    amax = max_magnitude(amax, __uint_as_float(word << 16));
    amax = max_magnitude(amax, __uint_as_float(word & 0xffff0000u));
  }
  const unsigned group = 0xfu << (threadIdx.x & 28);
  amax = fmaxf(amax, __shfl_xor_sync(group, amax, 1));
  amax = fmaxf(amax, __shfl_xor_sync(group, amax, 2));
  const uint32_t scale = q8_scale(amax);
  const float inverse = q8_inverse(scale), unit = q8_value(scale);
  uint32_t values[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t codes = e4m3_pair(__uint_as_float(words[w] << 16) * inverse,
                                     __uint_as_float(words[w] & 0xffff0000u) * inverse);
    values[w] = e4m3_pair_values(codes, unit);
  }
  return make_uint4(values[0], values[1], values[2], values[3]);
}

}  // namespace cedar::kernels::cuda
