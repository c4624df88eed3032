#include <algorithm>

#include "core/units.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/row_context.h"

namespace cedar::kernels::cpu {
namespace {

struct Member {
  const float* kv;
  const float* gate;
};

/// Row of member m of group g: of the chunk, or kept from an earlier one.
Member member_row(const CompressParams& p, int64_t g, int64_t m) {
  const int64_t at = g * p.ratio + m;
  const int64_t row = p.members[at];
  if (row >= 0) return {p.kv + row * p.columns, p.gate + row * p.columns};
  const int64_t slot = -1 - row;
  const int64_t offset = (slot * (p.ratio - 1) + p.pending_rows[at]) * p.columns;
  return {p.pending_kv + offset, p.pending_gate + offset};
}

}  // namespace

Status compress(KernelContext& ctx, const CompressParams& p) {
  const RowKernels& k = row_kernels(ctx);
  ArenaScope scope(*ctx.arena);
  // Per group: the members' exponentials, then maximum or sum, then the pooled row.
  WorkerScratch scratch(ctx, (p.ratio + 2) * p.columns * 4 + p.columns * 2);
  ctx.pool->parallel_for(p.groups, 2, [&](int64_t begin, int64_t end) {
    const WorkerScratch::Lease lease(scratch);
    float* weights = reinterpret_cast<float*>(lease.data());
    float* total = weights + p.ratio * p.columns;
    float* pooled = total + p.columns;
    Bf16* rounded = reinterpret_cast<Bf16*>(pooled + p.columns);
    for (int64_t g = begin; g < end; ++g) {
      for (int64_t m = 0; m < p.ratio; ++m) {
        const float* gate = member_row(p, g, m).gate;
        for (int64_t c = 0; c < p.columns; ++c)
          total[c] = m == 0 ? gate[c] : std::max(total[c], gate[c]);
      }
      for (int64_t m = 0; m < p.ratio; ++m) {
        const float* gate = member_row(p, g, m).gate;
        float* w = weights + m * p.columns;
        for (int64_t c = 0; c < p.columns; ++c) w[c] = gate[c] - total[c];
      }
      k.exp(weights, weights, p.ratio * p.columns);
      for (int64_t m = 0; m < p.ratio; ++m) {
        const float* w = weights + m * p.columns;
        for (int64_t c = 0; c < p.columns; ++c) total[c] = m == 0 ? w[c] : total[c] + w[c];
      }
      for (int64_t m = 0; m < p.ratio; ++m) {
        const float* kv = member_row(p, g, m).kv;
        const float* w = weights + m * p.columns;
        for (int64_t c = 0; c < p.columns; ++c) {
          const float part = w[c] / total[c] * kv[c];
          pooled[c] = m == 0 ? part : pooled[c] + part;
        }
      }
      for (int64_t c = 0; c < p.columns; ++c) rounded[c] = Bf16(pooled[c]);
      k.rms_norm(raw(rounded), raw(p.norm_weight), raw(p.latent + g * p.columns), p.columns, p.eps);
    }
  });
  return {};
}

}  // namespace cedar::kernels::cpu
