#pragma once
// How packed FP8 and FP4 weights lie in device memory: in the order in which the lanes of a warpgroup want them as
// the register operand of wgmma (wgmma.h), so that one 16-byte load a lane brings a block and no lane exchanges
// anything with another. bf16 and f32 weights keep the checkpoint's layout.
//
// Blocks of 512 bytes, 16 outputs tall, 16 bytes a lane (lane = 4 g + t holds outputs g and g + 8 of the block):
//   FP8, 32 inputs: word 2 i + j: output g + 8 i, inputs 16 j + 2 t + {8, 0, 9, 1} in bytes 0 to 3.
//   FP4, 64 inputs: word 2 h + i: output g + 8 i, inputs 32 h + 2 t + {0, 1, 8, 9, 16, 17, 24, 25}; where each code's
//     bits lie is said at fp4_word().
// Blocks follow each other along the inputs, then along the outputs. Inputs are padded to a multiple of 64 (kStage)
// and outputs to one of 64 with zeros.
//
// Scales become factors: e such that the weight is (the code's bits set into a bf16 number) * 2^(e - 127) *
// output_scale. A code's bits, taken as a bf16 number, are 2^-120 (FP8) or 2^-126 (FP4) of its value, subnormal
// codes included. output_scale is the weight's largest scale, so that the factors of one weight lie at the top of
// bf16's range whatever the scales are; a scale more than 2^120 below the largest counts as zero.
//   FP8: bytes [outputs / 32][inputs / 32], the latter padded to whole stages.
//   FP4: words [outputs / 16][stages][g], bytes: (output g, group 0), (g + 8, 0), (g, 1), (g + 8, 1).

#include <cstdint>

#include "core/units.h"
#include "kernels/weights.h"

namespace cedar::kernels::cuda {

constexpr int64_t kStage = 64;     // inputs that one step of the kernels multiplies
constexpr int64_t kTileRows = 64;  // outputs of one wgmma
constexpr int64_t kBlockBytes = 512;

constexpr int kTopFactorFp8 = 127 + 120;
constexpr int kTopFactorFp4 = 127 + 126;

constexpr int64_t stage_count(int64_t in) { return ceil_div(in, kStage); }
constexpr bool is_fp4(WeightFormat format) { return format == WeightFormat::fp4_group32; }
constexpr bool is_coded(WeightFormat format) {
  return format == WeightFormat::fp8_block32 || format == WeightFormat::fp4_group32;
}

/// Bytes of 16 outputs.
constexpr int64_t code_row_bytes(bool fp4, int64_t stages) {
  return stages * (fp4 ? kBlockBytes : 2 * kBlockBytes);
}
/// Bytes of the factors of 32 outputs (FP8) or 16 (FP4).
constexpr int64_t factor_row_bytes(bool fp4, int64_t stages) { return stages * (fp4 ? 32 : 2); }

}  // namespace cedar::kernels::cuda
