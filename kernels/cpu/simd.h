// Sixteen fp32 lanes on whatever registers one instruction set has. Included by the
// row_kernels_<isa>.cpp files only, after they define
//   CEDAR_ISA          namespace of this level: portable, avx2 or avx512
//   CEDAR_SIMD_BYTES   register width: 16, 32 or 64
// Code written over this file gives the same bits at every level: the lane count is fixed,
// reductions use one tree, and fused multiply-adds appear only where the product is exact in fp32
// (bf16 x bf16, powers of two). Everything is always_inline or file-local: no wide function may
// reach the linker under a shared name.

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define CEDAR_INLINE static inline __attribute__((always_inline))
// The trip count is a constant; unrolling keeps the parts in registers.
#define CEDAR_PARTS(i) _Pragma("GCC unroll 4") for (int i = 0; i < kParts; ++i)

namespace cedar::kernels::cpu::CEDAR_ISA {

constexpr int kLanes = 16;
constexpr int kNative = CEDAR_SIMD_BYTES / 4;  // lanes of one register
constexpr int kParts = kLanes / kNative;

typedef float NativeF __attribute__((vector_size(CEDAR_SIMD_BYTES)));
typedef uint32_t NativeU __attribute__((vector_size(CEDAR_SIMD_BYTES)));
typedef int32_t NativeI __attribute__((vector_size(CEDAR_SIMD_BYTES)));

struct F32x16 {
  NativeF part[kParts];
};
struct U32x16 {
  NativeU part[kParts];
};

// ---- memory ----

CEDAR_INLINE NativeF broadcast(float x) {
#if CEDAR_SIMD_BYTES == 64
  return _mm512_set1_ps(x);
#elif CEDAR_SIMD_BYTES == 32
  return _mm256_set1_ps(x);
#else
  return _mm_set1_ps(x);
#endif
}
CEDAR_INLINE F32x16 set1(float x) {
  F32x16 r;
  CEDAR_PARTS(i) r.part[i] = broadcast(x);
  return r;
}
CEDAR_INLINE F32x16 zero() {
  F32x16 r;
  CEDAR_PARTS(i) r.part[i] = NativeF{};
  return r;
}
CEDAR_INLINE U32x16 set1_u32(uint32_t x) {
  U32x16 r;
  CEDAR_PARTS(i) r.part[i] = NativeU{} + x;
  return r;
}
// Register by register: g++ copies a whole struct in 16-byte pieces, and a wider load of fresh
// pieces stalls.
CEDAR_INLINE F32x16 load(const float* p) {
  F32x16 r;
  CEDAR_PARTS(i) std::memcpy(&r.part[i], p + i * kNative, sizeof r.part[i]);
  return r;
}
CEDAR_INLINE U32x16 load_u32(const uint32_t* p) {
  U32x16 r;
  CEDAR_PARTS(i) std::memcpy(&r.part[i], p + i * kNative, sizeof r.part[i]);
  return r;
}
CEDAR_INLINE void store(float* p, F32x16 x) {
  CEDAR_PARTS(i) std::memcpy(p + i * kNative, &x.part[i], sizeof x.part[i]);
}
CEDAR_INLINE void store_u32(uint32_t* p, U32x16 x) {
  CEDAR_PARTS(i) std::memcpy(p + i * kNative, &x.part[i], sizeof x.part[i]);
}

/// The first min(left, 16) values, zeros after them. `left` > 0.
CEDAR_INLINE F32x16 load(const float* p, int64_t left) {
  if (left >= kLanes) return load(p);
  float v[kLanes] = {};
  std::memcpy(v, p, static_cast<size_t>(left) * 4);
  return load(v);
}
CEDAR_INLINE void store(float* p, F32x16 x, int64_t left) {
  if (left >= kLanes) {
    store(p, x);
    return;
  }
  float v[kLanes];
  store(v, x);
  std::memcpy(p, v, static_cast<size_t>(left) * 4);
}

// ---- bit casts and arithmetic ----

CEDAR_INLINE U32x16 bits(F32x16 x) {
  U32x16 r;
  CEDAR_PARTS(i) r.part[i] = reinterpret_cast<NativeU>(x.part[i]);
  return r;
}
CEDAR_INLINE F32x16 from_bits(U32x16 x) {
  F32x16 r;
  CEDAR_PARTS(i) r.part[i] = reinterpret_cast<NativeF>(x.part[i]);
  return r;
}

#define CEDAR_BINARY(Type, op)                         \
  CEDAR_INLINE Type operator op(Type a, Type b) {      \
    Type r;                                            \
    CEDAR_PARTS(i) r.part[i] = a.part[i] op b.part[i]; \
    return r;                                          \
  }
CEDAR_BINARY(F32x16, +)
CEDAR_BINARY(F32x16, -)
CEDAR_BINARY(F32x16, *)
CEDAR_BINARY(F32x16, /)
CEDAR_BINARY(U32x16, +)
CEDAR_BINARY(U32x16, -)
CEDAR_BINARY(U32x16, &)
CEDAR_BINARY(U32x16, |)
#undef CEDAR_BINARY

template <int kBits>
CEDAR_INLINE U32x16 shift_left(U32x16 x) {
  U32x16 r;
  CEDAR_PARTS(i) r.part[i] = x.part[i] << kBits;
  return r;
}
template <int kBits>
CEDAR_INLINE U32x16 shift_right(U32x16 x) {
  U32x16 r;
  CEDAR_PARTS(i) r.part[i] = x.part[i] >> kBits;
  return r;
}
template <int kBits>
CEDAR_INLINE U32x16 shift_right_signed(U32x16 x) {
  U32x16 r;
  CEDAR_PARTS(i) {
    r.part[i] = reinterpret_cast<NativeU>(reinterpret_cast<NativeI>(x.part[i]) >> kBits);
  }
  return r;
}

/// a > b ? a : b per lane: b where one of them is NaN.
CEDAR_INLINE F32x16 max(F32x16 a, F32x16 b) {
  F32x16 r;
  CEDAR_PARTS(i) r.part[i] = a.part[i] > b.part[i] ? a.part[i] : b.part[i];
  return r;
}
CEDAR_INLINE F32x16 min(F32x16 a, F32x16 b) {
  F32x16 r;
  CEDAR_PARTS(i) r.part[i] = a.part[i] < b.part[i] ? a.part[i] : b.part[i];
  return r;
}
/// a < b ? x : y per lane.
CEDAR_INLINE F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  F32x16 r;
  CEDAR_PARTS(i) r.part[i] = a.part[i] < b.part[i] ? x.part[i] : y.part[i];
  return r;
}
CEDAR_INLINE U32x16 select_less(U32x16 a, U32x16 b, U32x16 x, U32x16 y) {
  U32x16 r;
  CEDAR_PARTS(i) r.part[i] = a.part[i] < b.part[i] ? x.part[i] : y.part[i];
  return r;
}
CEDAR_INLINE F32x16 abs(F32x16 x) { return from_bits(bits(x) & set1_u32(0x7fffffffu)); }

/// Lanes 0..15.
CEDAR_INLINE U32x16 lane_index() {
  constexpr uint32_t kIndex[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load_u32(kIndex);
}

/// Lane l plus lane l + 8, then + 4, + 2, + 1: the same tree at every level.
CEDAR_INLINE float reduce_add(F32x16 x) {
  float v[kLanes];
  store(v, x);
  for (int l = 0; l < 8; ++l) v[l] += v[l + 8];
  for (int l = 0; l < 4; ++l) v[l] += v[l + 4];
  return (v[0] + v[2]) + (v[1] + v[3]);
}
CEDAR_INLINE float reduce_max(F32x16 x) {
  float v[kLanes];
  store(v, x);
  for (int l = 0; l < 8; ++l) v[l] = v[l] > v[l + 8] ? v[l] : v[l + 8];
  for (int l = 0; l < 4; ++l) v[l] = v[l] > v[l + 4] ? v[l] : v[l + 4];
  const float a = v[0] > v[2] ? v[0] : v[2];
  const float b = v[1] > v[3] ? v[1] : v[3];
  return a > b ? a : b;
}

}  // namespace cedar::kernels::cpu::CEDAR_ISA
