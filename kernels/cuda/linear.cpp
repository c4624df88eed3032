#include "kernels/linear.h"

#include "kernels/cuda/linear_ops.h"
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/weight_layout.h"

namespace cedar::kernels::cuda {
namespace {

bool on_16_bytes(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

Status linear(KernelContext& ctx, const LinearParams& p) {
  const ArenaScope scope(*ctx.arena);
  const PackedWeight& weight = *p.weight;
  const LinearOutput out{p.y, p.y_stride, p.y_dtype == DType::f32};
  if (is_coded(weight.format)) {
    CEDAR_TRY(const Bf16* x, q8_values(ctx, p.xq, p.rows, weight.in));
    return linear_coded(ctx, weight, x, p.rows, out);
  }
  const bool tensor_cores = weight.format == WeightFormat::bf16 && weight.in % 8 == 0 &&
                            p.x_stride % 8 == 0 && on_16_bytes(p.x);
  if (!tensor_cores) return linear_plain(ctx, weight, p.x, p.x_stride, p.rows, out);
  return linear_bf16(ctx, weight, p.x, p.x_stride, p.rows, p.groups, out);
}

}  // namespace cedar::kernels::cuda
