#pragma once
// Packed codes to bf16 pairs in registers (weight_layout.h says how codes lie). About two integer operations
// and half a multiplication for each weight: at full memory speed that is what a multiprocessor can spare.

#include <cstdint>

namespace cedar::kernels::cuda {

/// The factor in byte `kByte`, twice, as bf16.
template <int kByte>
__device__ __forceinline__ uint32_t factor_pair(uint32_t factors) {
  return __byte_perm(factors, 0, 0x4040 | kByte << 8 | kByte) << 7;
}

__device__ __forceinline__ uint32_t multiply_pair(uint32_t a, uint32_t b) {
  uint32_t product;
#if __CUDA_ARCH__ < 900
  // a b + (-0): the product, rounded once, its sign included.
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
#else
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
#endif
  return product;
}

/// Four E4M3 codes: bytes 1 and 3 to `first`, bytes 0 and 2 to `second`.
__device__ __forceinline__ void decode_fp8(uint32_t word, uint32_t factor, uint32_t& first,
                                           uint32_t& second) {
  constexpr uint32_t kSign = 0x80008000, kMagnitude = 0x07f007f0;
  first = multiply_pair((word & kSign) | ((word >> 4) & kMagnitude), factor);
  second = multiply_pair(((word << 8) & kSign) | ((word << 4) & kMagnitude), factor);
}

/// Packs eight E2M1 codes, in the order in which decode_fp4() returns them: one of each pair in each half of
/// the word. A code's places in bf16 are bit 15 for the sign and bits 8 to 6. Pair 0 lies there, pair 1 three
/// bits lower, pairs 2 and 3 take what is left: sign and magnitude apart.
__device__ __forceinline__ uint32_t fp4_word(const uint8_t (&codes)[8]) {
  constexpr int kSign[4] = {15, 12, 14, 13}, kMagnitude[4] = {6, 3, 0, 9};
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t code = codes[i];
    const int half = 16 * (i % 2);
    word |= (code >> 3) << (kSign[i / 2] + half) | (code & 7) << (kMagnitude[i / 2] + half);
  }
  return word;
}

/// Eight E2M1 codes to four pairs.
__device__ __forceinline__ void decode_fp4(uint32_t word, uint32_t factor, uint32_t (&pairs)[4]) {
  constexpr uint32_t kSign = 0x80008000, kMagnitude = 0x01c001c0, kBoth = kSign | kMagnitude;
  pairs[0] = multiply_pair(word & kBoth, factor);
  pairs[1] = multiply_pair((word << 3) & kBoth, factor);
  pairs[2] = multiply_pair(((word << 6) & kMagnitude) | ((word << 1) & kSign), factor);
  pairs[3] = multiply_pair(((word >> 3) & kMagnitude) | ((word << 2) & kSign), factor);
}

}  // namespace cedar::kernels::cuda
