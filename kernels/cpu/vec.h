// Vectors of kLanes floats in GCC/Clang vector extensions, for files that are compiled once per instruction
// set. The including file defines before it: kLanes (4, 8 or 16); fused_or_plain(a, b, c), a * b + c rounded once or
// twice; widen_u16(p), kLanes uint16_t as 32-bit lanes; square_root(x). Every function has internal linkage on purpose.

#pragma once

#include <cstdint>
#include <cstring>

namespace cedar::kernels::cpu {
namespace {

typedef float VecF __attribute__((vector_size(4 * kLanes)));
typedef uint32_t VecU __attribute__((vector_size(4 * kLanes)));
typedef int32_t VecI __attribute__((vector_size(4 * kLanes)));
typedef uint16_t VecU16 __attribute__((vector_size(2 * kLanes)));
typedef uint8_t VecU8 __attribute__((vector_size(kLanes)));

#define CEDAR_VEC [[gnu::always_inline]] static inline

template <class V, class T>
CEDAR_VEC V load(const T* p) {
  static_assert(sizeof(V) % sizeof(T) == 0);
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T, class V>
CEDAR_VEC void store(T* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

CEDAR_VEC VecF splat(float x) { return x - VecF{}; }
CEDAR_VEC VecU splat_bits(uint32_t x) { return x - VecU{}; }
CEDAR_VEC VecU bits(VecF x) { return reinterpret_cast<VecU>(x); }
CEDAR_VEC VecF floats(VecU x) { return reinterpret_cast<VecF>(x); }

CEDAR_VEC VecF load_bf16(const uint16_t* p) {
  return floats(reinterpret_cast<VecU>(widen_u16(p)) << 16);
}

/// Every lane: the largest of all lanes. A template so that only the branch of V's size is compiled.
template <class V>
CEDAR_VEC V largest_of_lanes(V v) {
  V turned;
  if constexpr (sizeof(V) == 64) {
    turned = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v = turned > v ? turned : v;
    turned = __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    v = turned > v ? turned : v;
    turned = __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    v = turned > v ? turned : v;
    turned = __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  } else if constexpr (sizeof(V) == 32) {
    turned = __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
    v = turned > v ? turned : v;
    turned = __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
    v = turned > v ? turned : v;
    turned = __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
  } else {
    turned = __builtin_shufflevector(v, v, 2, 3, 0, 1);
    v = turned > v ? turned : v;
    turned = __builtin_shufflevector(v, v, 1, 0, 3, 2);
  }
  return turned > v ? turned : v;
}

/// a0 + a1, a2 + a3, ..., b0 + b1, ... A template as above.
template <class V>
CEDAR_VEC V sums_of_pairs(V a, V b) {
  if constexpr (sizeof(V) == 64) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28,
                                   30) +
           __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  } else if constexpr (sizeof(V) == 32) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14) +
           __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
  } else {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
  }
}

/// Round to nearest even, in the high half of each lane. NaN stays a quiet NaN.
CEDAR_VEC VecU rounded_to_bf16(VecF x) {
  const VecU u = bits(x);
  const VecU rounded = u + 0x7fffu + ((u >> 16) & 1u);
  const VecI nan = (u & 0x7fffffffu) > 0x7f800000u;
  return (nan ? u | 0x00400000u : rounded) & 0xffff0000u;
}
CEDAR_VEC void store_as_bf16(uint16_t* p, VecF x) {
  store(p, __builtin_convertvector(rounded_to_bf16(x) >> 16, VecU16));
}

/// exp to about 2 ulp. Arguments are clamped to [-87, 88]; NaN stays NaN.
CEDAR_VEC VecF exp_approx(VecF x) {
  x = x > 88.0f ? splat(88.0f) : x;
  x = x < -87.0f ? splat(-87.0f) : x;
  // x = n ln2 + r, |r| <= ln2 / 2. Adding 1.5 * 2^23 rounds n to an integer in the low mantissa bits.
  const VecF shifted = fused_or_plain(x, splat(1.44269504f), splat(12582912.0f));
  const VecF n = shifted - 12582912.0f;
  // ln2 in two parts; n times the high part is exact.
  VecF r = fused_or_plain(n, splat(-0.693359375f), x);
  r = fused_or_plain(n, splat(2.12194440e-4f), r);
  // Taylor coefficients up to r^7: the remainder is below 2^-26 of the result on |r| <= 0.347.
  VecF y = splat(1.0f / 5040.0f);
  y = fused_or_plain(y, r, splat(1.0f / 720.0f));
  y = fused_or_plain(y, r, splat(1.0f / 120.0f));
  y = fused_or_plain(y, r, splat(1.0f / 24.0f));
  y = fused_or_plain(y, r, splat(1.0f / 6.0f));
  y = fused_or_plain(y, r, splat(0.5f));
  y = fused_or_plain(y, r, splat(1.0f));
  y = fused_or_plain(y, r, splat(1.0f));
  const VecU exponent = bits(shifted) << 23;  // n, modulo 2^9, moved into the exponent field
  return floats(bits(y) + exponent);
}

}  // namespace
}  // namespace cedar::kernels::cpu
