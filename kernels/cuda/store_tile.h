#pragma once
// Writes the sums of a wgmma tile.

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/quantize.h"

namespace cedar::kernels::cuda {

__device__ __forceinline__ void store_value(float* to, float value) { *to = value; }
__device__ __forceinline__ void store_value(Bf16* to, float value) { *to = Bf16(value); }

/// sums: 64 outputs from `first_output` on (those below `outputs` exist) times 8 * kGroups rows of y from
/// `first_row` on (those below `rows` exist). Only groups for which take(j) holds are written.
template <int kGroups, class T, class Take>
__device__ __forceinline__ void store_tile_as(T* y, int64_t stride,
                                              const float (&sums)[4 * kGroups], float scale,
                                              int first_output, int outputs, int first_row,
                                              int rows, const Take& take) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int output = first_output + warp * 16 + lane / 4, row = first_row + 2 * (lane % 4);
  const bool low = output < outputs, high = output + 8 < outputs;
  T* at = y + row * stride + output;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    if (take(j)) {
      const bool even = row + 8 * j < rows, odd = row + 8 * j + 1 < rows;
      if (even && low) store_value(at, sums[4 * j] * scale);
      if (odd && low) store_value(at + stride, sums[4 * j + 1] * scale);
      if (even && high) store_value(at + 8, sums[4 * j + 2] * scale);
      if (odd && high) store_value(at + stride + 8, sums[4 * j + 3] * scale);
    }
    at += 8 * stride;
  }
}

/// A tile as store_tile_as() has it, but y gets the values of the Q8 codes of its rows: groups of 32 outputs are halves of
/// the tile. A warpgroup calls, and synchronises through barrier `barrier`; `greatest`: 4 * 8 * kGroups floats of its own.
template <int kGroups, class Take>
__device__ __forceinline__ void store_tile_q8(Bf16* y, int64_t stride,
                                              const float (&sums)[4 * kGroups], int first_output,
                                              int first_row, int rows, float* greatest, int barrier,
                                              const Take& take) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int output = first_output + warp * 16 + lane / 4, row = first_row + 2 * (lane % 4);
  constexpr int kRows = 8 * kGroups;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      float amax = max_magnitude(0, round_to_bf16(sums[4 * j + odd]));
      amax = max_magnitude(amax, round_to_bf16(sums[4 * j + 2 + odd]));
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, step));
      }
      if (lane < 4) greatest[warp * kRows + 8 * j + 2 * lane + odd] = amax;
    }
  }
  sync_warps(barrier, 128);
  Bf16* at = y + row * stride + output;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    if (take(j)) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        if (row + 8 * j + odd >= rows) continue;
        const float* of_row = greatest + 8 * j + 2 * (lane % 4) + odd;
        const uint32_t scale =
            q8_scale(fmaxf(of_row[(warp & 2) * kRows], of_row[((warp & 2) + 1) * kRows]));
        const float inverse = q8_inverse(scale);
        const uint32_t codes = e4m3_pair(round_to_bf16(sums[4 * j + odd]) * inverse,
                                         round_to_bf16(sums[4 * j + 2 + odd]) * inverse);
        const uint32_t values = e4m3_pair_values(codes, q8_value(scale));
        at[odd * stride].bits = static_cast<uint16_t>(values);
        at[odd * stride + 8].bits = static_cast<uint16_t>(values >> 16);
      }
    }
    at += 8 * stride;
  }
}

template <int kGroups, class Take>
__device__ __forceinline__ void store_tile(const LinearOutput& out,
                                           const float (&sums)[4 * kGroups], float scale,
                                           int first_output, int outputs, int first_row, int rows,
                                           const Take& take) {
  if (out.f32) {
    store_tile_as<kGroups>(static_cast<float*>(out.y), out.stride, sums, scale, first_output,
                           outputs, first_row, rows, take);
  } else {
    store_tile_as<kGroups>(static_cast<Bf16*>(out.y), out.stride, sums, scale, first_output,
                           outputs, first_row, rows, take);
  }
}

}  // namespace cedar::kernels::cuda
