#pragma once
// How packed FP8 and FP4 weights lie in device memory: in the order in which the lanes of a warpgroup want
// them as the register operand of wgmma (wgmma.h), so that one bulk copy brings what a block multiplies next
// and no lane exchanges anything with another. bf16 and f32 weights keep the checkpoint's layout.
//
// A block is 64 outputs by 64 inputs (a stage): codes, then their factors. Blocks follow each other along the
// inputs, then along the outputs; both are padded to whole blocks with zeros. Warp w of the warpgroup has
// outputs 16 w to 16 w + 15 of the block, lane 4 g + t of it outputs g and g + 8; it reads 16 bytes at once:
//   FP8, at 1024 w + 512 h + 16 lane: inputs 32 h to 32 h + 31; word 2 i + j: output g + 8 i, inputs
//     16 j + 2 t + {8, 0, 9, 1} in bytes 0 to 3. Factors at 4096: bytes [w / 2][h], 12 more for alignment.
//   FP4, at 512 w + 16 lane: word 2 h + i: output g + 8 i, inputs 32 h + 2 t + {0, 1, 8, 9, 16, 17, 24, 25}; where each
//     code's bits lie is said at fp4_word(). Factors at 2048: words [w][g], bytes (output g, h 0), (g + 8, 0), (g, 1),
//     (g + 8, 1).
//
// Scales become factors: e such that the weight is (the code's bits set into a bf16 number) * 2^(e - 127) *
// output_scale. A code's bits, taken as a bf16 number, are 2^-120 (FP8) or 2^-126 (FP4) of its value,
// subnormal codes included. output_scale is the weight's largest scale, so that the factors of one weight lie
// at the top of bf16's range whatever the scales are; a scale more than 2^120 below the largest counts as
// zero.

#include <cstdint>

#include "core/units.h"
#include "kernels/weights.h"

namespace cedar::kernels::cuda {

constexpr int kStage = 64;     // inputs that one step of the kernels multiplies
constexpr int kTileRows = 64;  // outputs of one wgmma

constexpr int code_bytes(bool fp4) { return fp4 ? 2048 : 4096; }
constexpr int factor_bytes(bool fp4) { return fp4 ? 128 : 16; }
constexpr int block_bytes(bool fp4) { return code_bytes(fp4) + factor_bytes(fp4); }

constexpr int kTopFactorFp8 = 127 + 120;
constexpr int kTopFactorFp4 = 127 + 126;

constexpr int64_t stage_count(int64_t in) { return ceil_div(in, kStage); }
constexpr int64_t tile_count(int64_t out) { return ceil_div(out, kTileRows); }
constexpr bool is_fp4(WeightFormat format) { return format == WeightFormat::fp4_group32; }
constexpr bool is_coded(WeightFormat format) {
  return format == WeightFormat::fp8_block32 || format == WeightFormat::fp4_group32;
}

}  // namespace cedar::kernels::cuda
