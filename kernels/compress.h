#pragma once
// Gated pooling of `ratio` tokens into one latent (spec/model.md 7.4, ratio > 1): per channel
//   w = softmax over the group's tokens of gate; c = sum w * kv (fp32); latent = RMSNorm(bf16(c)).

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/kernel_context.h"

namespace cedar::kernels {

struct CompressParams {
  const float* kv = nullptr;    // [rows, columns] of the chunk
  const float* gate = nullptr;  // [rows, columns]
  /// Per group and member: >= 0 a chunk row; otherwise -1 - slot, the pending row kept for that slot.
  const int32_t* members = nullptr;       // [groups, ratio], oldest first
  const float* pending_kv = nullptr;      // [slots, ratio - 1, columns]
  const float* pending_gate = nullptr;    // [slots, ratio - 1, columns]
  const int32_t* pending_rows = nullptr;  // [groups, ratio]: which pending row, where members < 0
  const Bf16* norm_weight = nullptr;      // [columns]
  float eps = 0;
  Bf16* latent = nullptr;  // [groups, columns]
  int64_t groups = 0;
  int64_t ratio = 2;
  int64_t columns = 0;
};
Status compress(KernelContext& ctx, const CompressParams& p);

}  // namespace cedar::kernels
