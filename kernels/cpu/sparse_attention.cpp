// A unit of work is some heads of one query: all of them while there are queries enough for the
// threads, a share of them when there are not (decode). Heads do not meet, so the split cannot
// change a result.

#include <algorithm>

#include "core/units.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/row_context.h"

namespace cedar::kernels::cpu {
namespace {

// Packing a block costs as much as attending it with about five heads; below eight a share is
// mostly packing.
constexpr int64_t kLeastHeads = 8;

int64_t heads_per_unit(const KernelContext& ctx, const SparseAttentionParams& p) {
  const int64_t shares = std::clamp<int64_t>(ceil_div(ctx.pool->threads(), p.rows), 1,
                                             std::max<int64_t>(p.heads / kLeastHeads, 1));
  return align_up(ceil_div(p.heads, shares), 4);
}

int64_t longest_list(const SparseAttentionParams& p) {
  int64_t longest = 0;
  for (int64_t i = 0; i < p.rows; ++i) {
    const WindowSpan& w = p.window[i];
    longest = std::max(longest, w.ring_end - w.ring_begin + w.chunk_end - w.chunk_begin);
  }
  return longest + (p.topk != nullptr ? p.k : 0);
}

/// Fills the row's list; sets q8_rows and q4n_rows.
void list_rows(const SparseAttentionParams& p, int64_t row, const uint8_t** list,
               AttendQuery& query) {
  const WindowSpan& w = p.window[row];
  int64_t count = 0;
  for (int64_t position = w.ring_begin; position < w.ring_end; ++position) {
    list[count++] = p.rings.row(w.slot, position);
  }
  const int64_t chunk_row_bytes = packed_row_bytes(RowFormat::q8, p.head_dim);
  for (int64_t i = w.chunk_begin; i < w.chunk_end; ++i)
    list[count++] = p.chunk_rows + i * chunk_row_bytes;
  query.q8_rows = count;
  if (p.topk != nullptr) {
    for (int64_t i = 0; i < p.k; ++i) {
      const int32_t entry = p.topk[row * p.k + i];
      if (entry >= 0) list[count++] = p.global.row(p.sequences[row], entry);
    }
  }
  query.q4n_rows = count - query.q8_rows;
  query.rows = list;
}

}  // namespace

Status sparse_attention(KernelContext& ctx, const SparseAttentionParams& p) {
  const RowKernels& k = row_kernels(ctx);
  const int64_t unit_heads = heads_per_unit(ctx, p);
  const int64_t units = ceil_div(p.heads, unit_heads);
  const int64_t pairs = p.inv_freq != nullptr ? p.rotary_dim / 2 : 0;
  const int64_t list_bytes = align_up(longest_list(p) * 8, Buffer::kAlignment);
  const int64_t table_bytes = align_up(pairs * 8, Buffer::kAlignment);

  ArenaScope scope(*ctx.arena);
  WorkerScratch scratch(ctx,
                        list_bytes + table_bytes + attention_scratch_bytes(unit_heads, p.head_dim));
  ctx.pool->parallel_for(p.rows * units, 1, [&](int64_t begin, int64_t end) {
    const WorkerScratch::Lease lease(scratch);
    const uint8_t** list = reinterpret_cast<const uint8_t**>(lease.data());
    float* cos = reinterpret_cast<float*>(lease.data() + list_bytes);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t row = unit / units;
      const int64_t head = unit % units * unit_heads;
      AttendQuery query;
      list_rows(p, row, list, query);
      if (pairs > 0) {
        rotary_table(p.positions[row], p.inv_freq, pairs, true, cos, cos + pairs);
        query.cos = cos;
        query.sin = cos + pairs;
        query.rotary_dim = p.rotary_dim;
      }
      query.q = raw(p.q + (row * p.heads + head) * p.head_dim);
      query.o = raw(p.o + (row * p.heads + head) * p.head_dim);
      query.sink = p.sink + head;
      query.scale = p.scale;
      query.heads = std::min(unit_heads, p.heads - head);
      query.head_dim = p.head_dim;
      query.scratch = lease.data() + list_bytes + table_bytes;
      k.attend_query(query);
    }
  });
  return {};
}

}  // namespace cedar::kernels::cpu
