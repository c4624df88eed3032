#pragma once
// y = x * W^T (spec/model.md 2.4), accumulated in fp32.
//   fp8_block32 / fp4_group32: x as Q8 codes; per group of 32 inputs the exact products are summed in fp32,
//     scaled by both scales and added, groups in increasing order.
//   bf16: bf16 operands. f32: weights f32, x bf16 widened.
// A row's result depends on that row alone: neither on `rows` nor on its neighbours.

#include <cstdint>

#include "core/dtype.h"
#include "core/float_formats.h"
#include "kernels/quantize.h"
#include "kernels/weights.h"

namespace cedar::kernels {

struct LinearParams {
  const PackedWeight* weight = nullptr;  // [out, in]
  const Bf16* x = nullptr;               // [rows, x_stride]; formats bf16 and f32
  int64_t x_stride = 0;                  // in elements
  Q8Rows xq;                             // [rows, in] dense; formats fp8_block32 and fp4_group32
  void* y = nullptr;                     // [rows, y_stride]
  int64_t y_stride = 0;                  // in elements
  DType y_dtype = DType::bf16;           // bf16: rounded once; f32: the accumulator itself
  int64_t rows = 0;
  // A block-diagonal weight: the outputs of block g of out / groups read inputs [g * in, (g + 1) * in) of a row of x.
  // Other than 1: bf16 on CUDA, in a multiple of 64, out / groups one of 128, x on 16 bytes, x_stride a multiple of 8.
  int64_t groups = 1;
  // CUDA, coded formats: a second weight of the same format and inputs in the same launch, where weight->out is a multiple
  // of 64. Its sums are split as those of both together: other bits than alone.
  const PackedWeight* also = nullptr;
  void* also_y = nullptr;  // [rows, also_stride], y's dtype
  int64_t also_stride = 0;
  // CUDA: y gets the values of the Q8 codes of its rows (Q8Rows::values): the next linear's input. y_stride: out.
  bool quantised_y = false;
};
Status linear(KernelContext& ctx, const LinearParams& p);

}  // namespace cedar::kernels
