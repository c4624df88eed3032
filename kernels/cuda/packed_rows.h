#pragma once
// Packed cache rows of 512 channels to bf16 in the swizzled tiles of wgmma.h. Decoded values are times 2^-16:
// a bf16 factor can then hold every scale together with the power of two that the bits of E2M1 or E4M3 lack.

#include <cstdint>

#include "kernels/cuda/async_copy.h"
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

/// Half of 64 packed rows, 256 channels each, as they lie in shared memory.
struct PackedBlock {
  static constexpr int kRows = 64;
  static constexpr int kColumns = 512;
  static constexpr int kOwn = kColumns / 2;
  uint8_t codes[kRows * kOwn];  // q4n: half of it
  uint8_t scales[kRows * 16];   // q8: both halves'

  static __device__ constexpr int code_bytes(RowFormat format) {
    return format == RowFormat::q8 ? kOwn : kOwn / 2;
  }

  /// Starts the copies of rows [first, first + 16); one warp. Lane r of `address`, and lane r + 16, hold where row first + r
  /// lies, null for a row of zeros. `half`: which one.
  template <RowFormat kFormat>
  __device__ __forceinline__ void fetch(unsigned long long address, int first, int half) {
    constexpr bool kQ8 = kFormat == RowFormat::q8;
    constexpr uint32_t kPieces = code_bytes(kFormat) / 16;  // of a row
    constexpr uint32_t kRowsAtOnce = kWarp / kPieces;
    const uint32_t lane = threadIdx.x % kWarp;
#pragma unroll
    for (uint32_t at = 0; at < 16; at += kRowsAtOnce) {
      const uint32_t row = at + lane / kPieces;
      const auto* from = reinterpret_cast<const uint8_t*>(__shfl_sync(kAllLanes, address, row));
      const uint32_t piece = lane % kPieces * 16;
      copy_async(shared_address(codes) + (first + row) * code_bytes(kFormat) + piece,
                 from + code_bytes(kFormat) * half + piece, from != nullptr);
    }
    const auto* from = reinterpret_cast<const uint8_t*>(address);
    if (lane < 16) {
      copy_async(shared_address(scales) + (first + lane) * 16,
                 from + 2 * code_bytes(kFormat) + (kQ8 ? 0 : 16 * half), from != nullptr);
    }
  }
};

/// Decodes rows [first, first + 8) of `block`, the `half` that it is, to the same rows of the four tiles that begin at `to`; one
/// warp, 16 channels a lane, two rows at once. Lanes of odd tiles take the other row of the two, so that eight lanes that
/// store together reach all banks.
template <RowFormat kFormat>
__device__ __forceinline__ void decode_rows(const PackedBlock& block, int first, int half,
                                            uint32_t to) {
  constexpr int kTileBytes = 64 * 128;
  const uint32_t lane = threadIdx.x % kWarp, place = lane % 16;
  const uint32_t own = first + (lane / 16 ^ (lane / 4 & 1));
  const uint32_t tile = to + lane / 4 % 4 * kTileBytes;
#pragma unroll
  for (uint32_t i = 0; i < 8; i += 2) {
    const uint32_t row = own + i;
    const uint8_t* codes = block.codes + row * PackedBlock::code_bytes(kFormat);
    uint32_t words[4], scale;
    if constexpr (kFormat == RowFormat::q8) {
      const uint4 v = *reinterpret_cast<const uint4*>(codes + 16 * place);
      words[0] = v.x;
      words[1] = v.y;
      words[2] = v.z;
      words[3] = v.w;
      scale = block.scales[row * 16 + 8 * half + place / 2];
    } else {
      const uint2 v = *reinterpret_cast<const uint2*>(codes + 8 * place);
      words[0] = v.x;
      words[1] = v.y;
      scale = block.scales[row * 16 + place];
    }
#pragma unroll
    for (uint32_t eight = 0; eight < 2; ++eight) {
      uint32_t piece[4];
      if constexpr (kFormat == RowFormat::q8) {
        decode_q8(words[2 * eight], words[2 * eight + 1], scale, piece);
      } else {
        decode_q4n(words[eight], scale, piece);
      }
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                       tile + swizzled(row, lane % 4 * 2 + eight)),
                   "r"(piece[0]), "r"(piece[1]), "r"(piece[2]), "r"(piece[3])
                   : "memory");
    }
  }
}

}  // namespace cedar::kernels::cuda
