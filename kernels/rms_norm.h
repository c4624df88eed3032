#pragma once
// RMSNorm (spec/model.md 3): y = bf16(w * x * rsqrt(mean(x^2) + eps)), one rounding. x may equal y.

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/kernel_context.h"

namespace cedar::kernels {

struct RmsNormParams {
  const Bf16* x = nullptr;  // [rows, x_stride]
  int64_t x_stride = 0;
  const Bf16* weight = nullptr;  // [columns]
  Bf16* y = nullptr;             // [rows, y_stride]
  int64_t y_stride = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  float eps = 0;
};
Status rms_norm(KernelContext& ctx, const RmsNormParams& p);

}  // namespace cedar::kernels
