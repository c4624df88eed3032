#pragma once
// The kernels behind linear(), picked by format and rows in linear.cu.

#include "kernels/linear.h"

namespace cedar::kernels::cuda {

/// Rows up to which a weight is read once for each 64 rows, and the kernel is made for that reading.
constexpr int64_t kFewRows = 256;

/// y [rows, y_stride] of a linear; bf16 or f32.
struct LinearOutput {
  void* y = nullptr;
  int64_t stride = 0;
  bool f32 = false;
  bool quantised = false;  // values of Q8 codes; bf16 kernels
};

/// A second weight in the same launch.
struct SecondLinear {
  const PackedWeight* weight = nullptr;
  LinearOutput out;
};

/// The values of `codes` and `scales` [rows, columns], made in the context's arena where `q.values` is null.
Result<const Bf16*> q8_values(KernelContext& ctx, const Q8Rows& q, int64_t rows, int64_t columns);

/// FP8 and FP4. x: [rows, in], 16-byte aligned, dense.
Status linear_coded(KernelContext& ctx, const PackedWeight& weight, const Bf16* x, int64_t rows,
                    const LinearOutput& out, const SecondLinear& second);
/// The same without what only Hopper has (plain_products.cu).
Status plain_linear_coded(KernelContext& ctx, const PackedWeight& weight, const Bf16* x,
                          int64_t rows, const LinearOutput& out);
/// bf16 on the tensor cores. REQUIRES: in and x_stride multiples of 8, x 16-byte aligned; `groups` as
/// LinearParams says.
Status linear_bf16(KernelContext& ctx, const PackedWeight& weight, const Bf16* x, int64_t x_stride,
                   int64_t rows, int64_t groups, const LinearOutput& out);
/// bf16 of any shape and f32, on the vector units.
Status linear_plain(KernelContext& ctx, const PackedWeight& weight, const Bf16* x, int64_t x_stride,
                    int64_t rows, int64_t groups, const LinearOutput& out);

}  // namespace cedar::kernels::cuda
