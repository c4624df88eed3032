#pragma once
// The end of a sublayer (hc_post) for some columns of a row, for its own kernel and for hc_pre's.

#include <cstdint>

#include "kernels/cuda/device_math.h"
#include "kernels/cuda/rows.h"
#include "kernels/hyper_connection.h"

namespace cedar::kernels::cuda {

/// kWidth neighbouring columns of one copy.
template <int kWidth>
__device__ __forceinline__ void load_columns(const Bf16* p, float (&x)[kWidth]) {
  if constexpr (kWidth == 8) {
    widen8(load8(p), x);
  } else {
    x[0] = widen(*p);
  }
}
template <int kWidth>
__device__ __forceinline__ void store_columns(Bf16* p, const float (&x)[kWidth]) {
  if constexpr (kWidth == 8) {
    store8(p, round8(x));
  } else {
    *p = Bf16(x[0]);
  }
}

/// What goes along with hc_post in its launch.
struct PostArgs {
  HcPostParams p;
  SlotSum slots;  // out null: y is there
  RingWriteParams ring;
};

/// bf16(sum of a row's slots) of kWidth columns.
template <int kWidth>
__device__ __forceinline__ void sum_slots(const SlotSum& s, int64_t row, int64_t c, int64_t d,
                                          float (&value)[kWidth]) {
#pragma unroll
  for (float& v : value) v = 0;
  const int count = static_cast<int>(s.top) + (s.shared ? 1 : 0);
  for (int i = 0; i < count; ++i) {
    const int64_t slot = i < s.top ? s.row_slots[row * s.top + i] : s.rows * s.top + row;
    if (slot < 0) continue;
    float v[kWidth];
    load_columns(s.out + slot * d + c, v);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) value[k] += v[k];
  }
#pragma unroll
  for (float& v : value) v = round_to_bf16(v);
}

inline PostArgs post_args(const HcPostParams& p) {
  PostArgs a{};
  a.p = p;
  if (p.slots != nullptr) a.slots = *p.slots;
  if (p.ring != nullptr) a.ring = *p.ring;
  return a;
}
inline bool has_vectors(const PostArgs& a) {
  return a.p.d % 8 == 0 && aligned16(a.p.x) && aligned16(a.p.y) && aligned16(a.p.x_out) &&
         aligned16(a.slots.out);
}

/// Columns [c, c + kWidth) of a row; store(copy, values) for every copy, after all of them were read: x_out may be x.
template <int kWidth, int kCopies, class Store>
__device__ __forceinline__ void finish_columns(const PostArgs& a, int64_t row, int64_t c,
                                               const Store& store) {
  const HcPostParams& p = a.p;
  const int copies = kCopies > 0 ? kCopies : static_cast<int>(p.copies);
  constexpr int kRoom = kCopies > 0 ? kCopies : static_cast<int>(kMaxHcCopies);
  const Bf16* x = p.x + row * copies * p.d + c;
  const float* post = p.post + row * copies;
  const float* mix = p.mix + row * copies * copies;
  float in[kRoom][kWidth], value[kWidth];
  if (a.slots.out != nullptr) {
    sum_slots(a.slots, row, c, p.d, value);
  } else {
    load_columns(p.y + row * p.d + c, value);
  }
#pragma unroll
  for (int j = 0; j < kRoom; ++j) {
    if (j < copies) load_columns(x + j * p.d, in[j]);
  }
#pragma unroll
  for (int k = 0; k < kRoom; ++k) {
    if (k >= copies) break;
    float sum[kWidth];
#pragma unroll
    for (int j = 0; j < kRoom; ++j) {
      if (j >= copies) break;
      const float weight = mix[j * copies + k];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float part = __fmul_rn(in[j][i], weight);
        sum[i] = j == 0 ? part : __fadd_rn(sum[i], part);
      }
    }
    const float weight = post[k];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[i] = __fadd_rn(__fmul_rn(value[i], weight), sum[i]);
    store(k, sum);
  }
}

}  // namespace cedar::kernels::cuda
