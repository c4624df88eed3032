#include <algorithm>
#include <cmath>

#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/row_context.h"

namespace cedar::kernels::cpu {

Status engram_widen(KernelContext& ctx, const EngramWidenParams& p) {
  const RowKernels& k = row_kernels(ctx);
  const int64_t packed_bytes = packed_row_bytes(RowFormat::q8, p.dim);
  ctx.pool->parallel_for(p.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * p.columns; i < end * p.columns; ++i) {
      k.widen_q8(p.rows_packed + i * packed_bytes, p.dim, raw(p.out + i * p.dim));
    }
  });
  return {};
}

Status engram_gate(KernelContext& ctx, const EngramGateParams& p) {
  const RowKernels& k = row_kernels(ctx);
  const float width = static_cast<float>(p.d);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.d)));
  ctx.pool->parallel_for(p.rows, 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (p.image_mask != nullptr && p.image_mask[i] != 0) continue;
      const Bf16* keys = p.kv + i * (p.copies + 1) * p.d;
      for (int64_t j = 0; j < p.copies; ++j) {
        Bf16* x = p.x + (i * p.copies + j) * p.d;
        const Bf16* key = keys + j * p.d;
        const float x_factor = 1.0f / std::sqrt(k.square_sum(raw(x), p.d) / width + p.eps);
        const float key_factor = 1.0f / std::sqrt(k.square_sum(raw(key), p.d) / width + p.eps);
        const float sum = k.engram_dot(raw(x), raw(key), raw(p.q_weight + j * p.d),
                                       raw(p.k_weight + j * p.d), p.d);
        const float dot = sum * (x_factor * key_factor) * scale;
        const float gate =
            sigmoid_scalar(std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6f)), dot));
        k.add_scaled(raw(x), raw(keys + p.copies * p.d), gate, p.d);
      }
    }
  });
  return {};
}

}  // namespace cedar::kernels::cpu
