#include <cstring>

#include "core/units.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/row_context.h"

namespace cedar::kernels::cpu {
namespace {

uint8_t* destination(const KvWriteParams& p, int64_t row) {
  if (p.dense != nullptr) return p.dense + row * packed_row_bytes(p.format, p.columns);
  return p.target_rows[row] < 0 ? nullptr : p.paged.row(p.sequences[row], p.target_rows[row]);
}

void pack(const RowKernels& k, RowFormat format, const Bf16* x, int64_t columns, uint8_t* packed) {
  switch (format) {
    case RowFormat::q8: quantize_row(format, x, columns, packed); return;
    case RowFormat::q4x: k.quantize_q4x(raw(x), columns, packed); return;
    case RowFormat::q4n: k.quantize_q4n(raw(x), columns, packed); return;
  }
}

}  // namespace

Status kv_write(KernelContext& ctx, const KvWriteParams& p) {
  const RowKernels& k = row_kernels(ctx);
  const int64_t pairs = p.rotary_dim / 2;
  const int64_t row_bytes = align_up(p.columns * 2, Buffer::kAlignment);
  ArenaScope scope(*ctx.arena);
  WorkerScratch scratch(ctx, row_bytes + p.rotary_dim * 4);
  ctx.pool->parallel_for(p.rows, 4, [&](int64_t begin, int64_t end) {
    const WorkerScratch::Lease lease(scratch);
    Bf16* row = reinterpret_cast<Bf16*>(lease.data());
    float* cos = reinterpret_cast<float*>(lease.data() + row_bytes);
    float* sin = cos + pairs;
    for (int64_t i = begin; i < end; ++i) {
      uint8_t* target = destination(p, i);
      if (target == nullptr) continue;
      const Bf16* x = p.x + i * p.x_stride;
      if (p.norm_weight != nullptr) {
        k.rms_norm(raw(x), raw(p.norm_weight), raw(row), p.columns, p.eps);
      } else {
        std::memcpy(row, x, static_cast<size_t>(p.columns) * sizeof(Bf16));
      }
      if (pairs > 0) {
        rotary_table(p.positions[i], p.inv_freq, pairs, false, cos, sin);
        k.rotate_pairs(raw(row + p.columns - p.rotary_dim), pairs, cos, sin);
      }
      pack(k, p.format, row, p.columns, target);
    }
  });
  return {};
}

Status ring_write(KernelContext& ctx, const RingWriteParams& p) {
  ctx.pool->parallel_for(p.rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (p.slots[i] < 0) continue;
      std::memcpy(p.rings.row(p.slots[i], p.positions[i]), p.chunk_rows + i * p.rings.row_bytes,
                  static_cast<size_t>(p.rings.row_bytes));
    }
  });
  return {};
}

}  // namespace cedar::kernels::cpu
