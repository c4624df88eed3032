#pragma once
// Packed cache rows of 512 channels to bf16 in the swizzled tiles of wgmma.h. Decoded values are times 2^-16:
// a bf16 factor can then hold every scale together with the power of two that the bits of E2M1 or E4M3 lack.

#include <cstdint>

#include "kernels/cuda/device_math.h"
#include "kernels/cuda/wgmma.h"
#include "kernels/quantize.h"

namespace cedar::kernels::cuda {

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
#if __CUDA_ARCH__ < 900
  // a b + (-0): the product, rounded once, its sign included.
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
#else
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
#endif
  return product;
}

/// Eight E2M1 codes times an E4M3 scale to eight bf16.
__device__ __forceinline__ void decode_q4n(uint32_t x, uint32_t scale, uint32_t (&out)[4]) {
  constexpr uint32_t kSign = 0x80008000, kMagnitude = 0x01c001c0;
  // The code's bits stand for scale * 2^-120; 2^126 * 2^-16 are to be added to it.
  const float factor = __uint_as_float(scale << 20) * 0x1p120f * 0x1p110f;
  const uint32_t pair = __byte_perm(__float_as_uint(factor), 0, 0x3232);
  const uint32_t a = multiply_bf16x2(((x << 12) & kSign) | ((x << 6) & kMagnitude), pair);  // 0, 4
  const uint32_t b = multiply_bf16x2(((x << 8) & kSign) | ((x << 2) & kMagnitude), pair);   // 1, 5
  const uint32_t c = multiply_bf16x2(((x << 4) & kSign) | ((x >> 2) & kMagnitude), pair);   // 2, 6
  const uint32_t d = multiply_bf16x2((x & kSign) | ((x >> 6) & kMagnitude), pair);          // 3, 7
  out[0] = __byte_perm(a, b, 0x5410);
  out[1] = __byte_perm(c, d, 0x5410);
  out[2] = __byte_perm(a, b, 0x7632);
  out[3] = __byte_perm(c, d, 0x7632);
}

/// Eight E4M3 codes times an E8M0 scale to eight bf16.
__device__ __forceinline__ void decode_q8(uint32_t low, uint32_t high, uint32_t scale,
                                          uint32_t (&out)[4]) {
  constexpr uint32_t kSign = 0x80008000, kMagnitude = 0x07f007f0;
  // 2^(scale - 127) * 2^120 * 2^-16.
  const uint32_t bits = scale == 255 ? 0x7fc0u : min(scale + 104u, 254u) << 7;
  const uint32_t pair = bits * 0x10001u;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t x = i == 0 ? low : high;
    const uint32_t a = multiply_bf16x2(((x << 8) & kSign) | ((x << 4) & kMagnitude), pair);  // 0, 2
    const uint32_t b = multiply_bf16x2((x & kSign) | ((x >> 4) & kMagnitude), pair);         // 1, 3
    out[2 * i] = __byte_perm(a, b, 0x5410);
    out[2 * i + 1] = __byte_perm(a, b, 0x7632);
  }
}

/// Rows of one warp on their way, 16 channels a lane. Lanes of odd tiles take the neighbouring row, so that
/// eight lanes that store together reach all banks.
template <RowFormat kFormat>
struct PackedRows {
  static constexpr bool kQ8 = kFormat == RowFormat::q8;
  static constexpr int kColumns = 512;
  static constexpr int kTileBytes = 64 * 128;
  static constexpr int kRows = kQ8 ? 4 : 8;  // at once
  uint32_t words[kRows][kQ8 ? 4 : 2];
  uint32_t scales[kRows];

  static __device__ __forceinline__ int row_of(int i) { return i ^ (threadIdx.x % kWarp / 4 & 1); }

  /// Lane r of `address` holds where row r lies, null for a row of zeros; rows [first, first + kRows).
  __device__ __forceinline__ void load(unsigned long long address, int first) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const auto* row =
          reinterpret_cast<const uint8_t*>(__shfl_sync(kAllLanes, address, first + row_of(i)));
      scales[i] = 0;
      if constexpr (kQ8) {
        uint4 codes = make_uint4(0, 0, 0, 0);
        if (row != nullptr) {
          codes = __ldg(reinterpret_cast<const uint4*>(row + 16 * lane));
          scales[i] = __ldg(row + kColumns + lane / 2);
        }
        words[i][0] = codes.x;
        words[i][1] = codes.y;
        words[i][2] = codes.z;
        words[i][3] = codes.w;
      } else {
        uint2 codes = make_uint2(0, 0);
        if (row != nullptr) {
          codes = __ldg(reinterpret_cast<const uint2*>(row + 8 * lane));
          scales[i] = __ldg(row + kColumns / 2 + lane);
        }
        words[i][0] = codes.x;
        words[i][1] = codes.y;
      }
    }
  }

  /// To rows [first, ...) of the warp's 8, whose eight tiles begin at `to`.
  __device__ __forceinline__ void decode(uint32_t to, int first) const {
    const int lane = threadIdx.x % kWarp;
    const uint32_t tile = to + lane / 4 * kTileBytes;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first + row_of(i);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t piece[4];
        if constexpr (kQ8) {
          decode_q8(words[i][2 * half], words[i][2 * half + 1], scales[i], piece);
        } else {
          decode_q4n(words[i][half], scales[i], piece);
        }
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                         tile + swizzled(row, lane % 4 * 2 + half)),
                     "r"(piece[0]), "r"(piece[1]), "r"(piece[2]), "r"(piece[3])
                     : "memory");
      }
    }
  }
};

}  // namespace cedar::kernels::cuda
