#pragma once
// The warpgroup of sparse attention that multiplies with the values and writes the output.

#include <cstdint>

#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/sparse_attention_pair.h"
#include "kernels/cuda/wgmma.h"
#include "kernels/cuda/wgmma_values.h"

namespace cedar::kernels::cuda::sparse_pair {

/// Word i of lane j of four neighbours to word j of lane i.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4]) {
  const bool odd = (threadIdx.x & 1) != 0, upper = (threadIdx.x & 2) != 0;
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    const uint32_t got = __shfl_xor_sync(kAllLanes, odd ? w[k] : w[k + 1], 1);
    w[k] = odd ? got : w[k];
    w[k + 1] = odd ? w[k + 1] : got;
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? w[k] : w[k + 2], 2);
    w[k] = upper ? got : w[k];
    w[k + 2] = upper ? w[k + 2] : got;
  }
}

/// o * factor to memory; the last 64 channels turned back where `rotations` is not null.
__device__ __forceinline__ void write_output(const float (&o)[2][64], float2 factor,
                                             const float2* rotations, Bf16* to) {
  const int part = static_cast<int>(threadIdx.x) % kGroupThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float f = i == 0 ? factor.x : factor.y;
      Bf16* row = to + (16 * part + lane / 4 + 8 * i) * kDim + half * 128 + lane % 4 * 8;
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        uint32_t words[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int j = 4 * m + k;
          words[k] = pack_bf16(o[half][4 * j + 2 * i] * f, o[half][4 * j + 2 * i + 1] * f);
          if (half == 1 && j >= 8 && rotations != nullptr) {
            const float2 turned =
                rotate(low_half(words[k]), high_half(words[k]), rotations[4 * (j - 8) + lane % 4]);
            words[k] = pack_bf16(turned.x, turned.y);
          }
        }
        transpose_quad(words);
        store8(row + 32 * m, make_uint4(words[0], words[1], words[2], words[3]));
      }
    }
  }
}

__device__ __forceinline__ void add_values(const SparseAttentionParams& p, Shared& shared,
                                           int rank) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const int lane = thread % kWarp;
  Turn<kStages> rows;
  Turn<2> turn;
  int slot = 0;
  for (int64_t query = blockIdx.x; query < p.rows; query += gridDim.x) {
    float o[2][64];
#pragma unroll
    for (int i = 0; i < 64; ++i) o[0][i] = o[1][i] = 0;
    float2 factor = make_float2(0, 0);
    for (bool last = false; !last; ++rows.number, ++turn.number) {
      barrier_wait(shared_address(&shared.weights_full[turn.place()]), turn.phase());
      barrier_wait(shared_address(&shared.rows_full[rows.place()]), rows.phase());
      last = __shfl_sync(kAllLanes, shared.block_is_last[rows.place()], 0) != 0;
      if (__shfl_sync(kAllLanes, shared.block_rows[rows.place()], 0) != 0) {
        const Weights& from = shared.weights[turn.place()];
        uint32_t weights[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint4 v = from.fragments[i][thread];
          weights[i][0] = v.x;
          weights[i][1] = v.y;
          weights[i][2] = v.z;
          weights[i][3] = v.w;
        }
        const float2 alpha = from.alpha[thread];
        if (last) factor = from.factor[thread];
        if (__any_sync(kAllLanes, alpha.x != 1.0f || alpha.y != 1.0f)) {
#pragma unroll
          for (int i = 0; i < 64; ++i) {
            o[0][i] *= i % 4 < 2 ? alpha.x : alpha.y;
            o[1][i] *= i % 4 < 2 ? alpha.x : alpha.y;
          }
        }
        wgmma_fence();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint64_t b = value_descriptor(
              shared_address(shared.rows[rows.place()]) + 2 * half * kTileBytes, kTileBytes);
#pragma unroll
          for (int t = 0; t < 4; ++t) wgmma_values(o[half], weights[t], b + value_step(t));
        }
        wgmma_commit();
        wgmma_wait<0>();
        settle(o[0]);
        settle(o[1]);
      }
      __syncwarp();
      if (lane == 0) {
        barrier_arrive(shared_address(&shared.weights_empty[turn.place()]));
        barrier_arrive(shared_address(&shared.rows_empty[rows.place()]));
      }
    }
    const bool turns = p.inv_freq != nullptr && rank == kCluster - 1;
    write_output(o, factor, turns ? shared.rotations[slot] : nullptr,
                 p.o + query * kHeads * kDim + rank * kOwnDim);
    slot = (slot + 1) % Shared::kRotations;
  }
}

}  // namespace cedar::kernels::cuda::sparse_pair
