#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/row_context.h"

namespace cedar::kernels::cpu {

Status rope(KernelContext& ctx, const RopeParams& p) {
  const RowKernels& k = row_kernels(ctx);
  const int64_t pairs = p.rotary_dim / 2;
  ArenaScope scope(*ctx.arena);
  WorkerScratch scratch(ctx, p.rotary_dim * 4);
  ctx.pool->parallel_for(p.rows, 4, [&](int64_t begin, int64_t end) {
    const WorkerScratch::Lease lease(scratch);
    float* cos = reinterpret_cast<float*>(lease.data());
    float* sin = cos + pairs;
    for (int64_t i = begin; i < end; ++i) {
      rotary_table(p.positions[i], p.inv_freq, pairs, p.inverse, cos, sin);
      for (int64_t h = 0; h < p.heads; ++h) {
        Bf16* head = p.x + i * p.row_stride + h * p.head_stride;
        k.rotate_pairs(raw(head + p.head_dim - p.rotary_dim), pairs, cos, sin);
      }
    }
  });
  return {};
}

}  // namespace cedar::kernels::cpu
