#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/row_context.h"

namespace cedar::kernels::cpu {

Status rms_norm(KernelContext& ctx, const RmsNormParams& p) {
  const RowKernels& k = row_kernels(ctx);
  ctx.pool->parallel_for(p.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      k.rms_norm(raw(p.x + i * p.x_stride), raw(p.weight), raw(p.y + i * p.y_stride), p.columns,
                 p.eps);
    }
  });
  return {};
}

}  // namespace cedar::kernels::cpu
