#include "kernels/linear.h"

#include "kernels/cuda/level.h"
#include "kernels/cuda/linear_ops.h"
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/weight_layout.h"

namespace cedar::kernels::cuda {
namespace {

bool on_16_bytes(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

/// In place, by a launch of its own.
Status quantise_output(KernelContext& ctx, const LinearParams& p) {
  QuantizeQ8Params q;
  q.x = static_cast<const Bf16*>(p.y);
  q.x_stride = p.y_stride;
  q.out.values = static_cast<Bf16*>(p.y);
  q.rows = p.rows;
  q.columns = p.weight->out;
  return cuda::quantize_q8(ctx, q);
}

}  // namespace

Status linear(KernelContext& ctx, const LinearParams& p) {
  const ArenaScope scope(*ctx.arena);
  const PackedWeight& weight = *p.weight;
  const bool f32 = p.y_dtype == DType::f32;
  LinearOutput out{p.y, p.y_stride, f32, false};
  if (is_coded(weight.format)) {
    CEDAR_TRY(const Bf16* x, q8_values(ctx, p.xq, p.rows, weight.in));
    const LinearOutput also_out{p.also_y, p.also_stride, f32, false};
    if (on_hopper(ctx)) {
      CEDAR_CHECK_OK(linear_coded(ctx, weight, x, p.rows, out, {p.also, also_out}));
    } else {
      CEDAR_CHECK_OK(plain_linear_coded(ctx, weight, x, p.rows, out));
      if (p.also != nullptr) {
        CEDAR_CHECK_OK(plain_linear_coded(ctx, *p.also, x, p.rows, also_out));
      }
    }
    return p.quantised_y ? quantise_output(ctx, p) : Status{};
  }
  const bool tensor_cores = on_hopper(ctx) && weight.format == WeightFormat::bf16 &&
                            weight.in % 8 == 0 && p.x_stride % 8 == 0 && on_16_bytes(p.x);
  if (!tensor_cores) {
    CEDAR_CHECK_OK(linear_plain(ctx, weight, p.x, p.x_stride, p.rows, p.groups, out));
    return p.quantised_y ? quantise_output(ctx, p) : Status{};
  }
  out.quantised = p.quantised_y && weight.out % kTileRows == 0;
  CEDAR_CHECK_OK(linear_bf16(ctx, weight, p.x, p.x_stride, p.rows, p.groups, out));
  return p.quantised_y && !out.quantised ? quantise_output(ctx, p) : Status{};
}

}  // namespace cedar::kernels::cuda
