#pragma once
// Rotary embedding on adjacent pairs (spec/model.md 4). angle = f32(f32(position) * inv_freq), one fp32
// product; cos and sin of that fp32 number evaluated in double and rounded.

#include <cstdint>
#include <vector>

#include "core/float_formats.h"
#include "kernels/kernel_context.h"

namespace cedar::kernels {

struct YarnScaling {
  double factor = 1;  // 1: none
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_length = 0;
};

/// inv_freq [rotary_dim / 2] in fp32.
std::vector<float> rope_inverse_frequencies(int64_t rotary_dim, double theta,
                                            const YarnScaling& yarn);

/// cos and sin [pairs] of one position: the table behind every rotation. Host memory.
void rope_table(int64_t position, const float* inv_freq, int64_t pairs, float* cos, float* sin);

struct RopeParams {
  Bf16* x =
      nullptr;  // [rows, heads, head_stride]; the last `rotary_dim` of `head_dim` are rotated in place
  int64_t row_stride = 0;              // in elements
  int64_t head_stride = 0;             // in elements
  const int64_t* positions = nullptr;  // [rows]
  const float* inv_freq = nullptr;     // [rotary_dim / 2]
  int64_t rows = 0;
  int64_t heads = 1;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  bool inverse = false;  // s <- -s
};
Status rope(KernelContext& ctx, const RopeParams& p);

}  // namespace cedar::kernels
