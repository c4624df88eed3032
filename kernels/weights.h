#pragma once
// Weights as a checkpoint stores them, and as a back end wants to read them.

#include <cstdint>
#include <span>
#include <string>

#include "core/buffer.h"
#include "kernels/kernel_context.h"
#include "kernels/weight_format.h"

namespace cedar::kernels {

/// A linear layer's weight in checkpoint layout, host memory (usually the mapped file).
struct WeightView {
  WeightFormat format = WeightFormat::bf16;
  int64_t out = 0;
  int64_t in = 0;
  const void* data = nullptr;
  const uint8_t* scales = nullptr;  // fp8_block32, fp4_group32
};

/// A weight converted once at load into the back end's layout. Keeps FP8 and FP4 as codes: a packed weight
/// takes no more bytes than the checkpoint's, up to tile padding. Immutable; safe to share between threads.
struct PackedWeight {
  WeightFormat format = WeightFormat::bf16;
  int64_t out = 0;
  int64_t in = 0;
  int64_t out_padded = 0;  // rows rounded up to the tile
  Buffer codes;
  Buffer scales;           // empty for bf16 and f32
  float output_scale = 1;  // CUDA: what its scales leave out (cuda/weight_layout.h)

  /// Bytes one pass over the weight has to read.
  int64_t bytes() const { return codes.bytes() + scales.bytes(); }
};

/// REQUIRES: in % 32 == 0 for fp8_block32 and fp4_group32. Errors: invalid_argument, out_of_memory.
/// The rows of several views (equal format and `in`) are stacked: outputs of a fused linear are
/// consecutive columns. For fp8_block32 every view but the last needs out % 32 == 0.
Result<PackedWeight> pack_weight(KernelContext& ctx, std::span<const WeightView> stacked);
inline Result<PackedWeight> pack_weight(KernelContext& ctx, const WeightView& view) {
  return pack_weight(ctx, std::span<const WeightView>(&view, 1));
}

}  // namespace cedar::kernels
