// Long rows of a small batch are cut into segments, one scan each; the best of a row are then the
// best among the segments' best, taken in column order, so that the cut cannot change the result.

#include <algorithm>
#include <limits>

#include "core/units.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/row_context.h"
#include "kernels/cpu/select_best.h"

namespace cedar::kernels::cpu {
namespace {

// A segment must be long against k, or merging costs more than scanning.
constexpr int64_t kLeastSegment = 32768;

BestColumns best_in(uint8_t* scratch, int64_t k) {
  float* scores = reinterpret_cast<float*>(scratch);
  return BestColumns(k, scores, reinterpret_cast<int32_t*>(scores + BestColumns::capacity(k)));
}

void write_row(BestColumns& best, int64_t k, int32_t* out) {
  const int64_t count = best.finish();
  std::copy_n(best.columns(), count, out);
  std::fill(out + count, out + k, kNoIndex);
}

const uint32_t* mask_of(const TopkParams& p, int64_t row) {
  return p.mask == nullptr ? nullptr : p.mask + row * p.mask_stride;
}

void topk_segmented(KernelContext& ctx, const TopkParams& p, int64_t segments) {
  const RowKernels& k = row_kernels(ctx);
  const int64_t length = align_up(ceil_div(p.columns, segments), 32);
  float* scores = ctx.arena->allocate<float>(p.rows * segments * p.k);
  int32_t* columns = ctx.arena->allocate<int32_t>(p.rows * segments * p.k);
  int64_t* counts = ctx.arena->allocate<int64_t>(p.rows * segments);
  WorkerScratch scratch(ctx, BestColumns::scratch_bytes(p.k));
  ctx.pool->parallel_for(p.rows * segments, 1, [&](int64_t begin, int64_t end) {
    const WorkerScratch::Lease lease(scratch);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / segments;
      const int64_t first = std::min(i % segments * length, p.columns);
      BestColumns best = best_in(lease.data(), p.k);
      best.scan(k, p.scores + row * p.score_stride, mask_of(p, row), first,
                std::min(first + length, p.columns));
      counts[i] = best.finish();
      std::copy_n(best.scores(), counts[i], scores + i * p.k);
      std::copy_n(best.columns(), counts[i], columns + i * p.k);
    }
  });
  ctx.pool->parallel_for(p.rows, 1, [&](int64_t begin, int64_t end) {
    const WorkerScratch::Lease lease(scratch);
    for (int64_t row = begin; row < end; ++row) {
      BestColumns best = best_in(lease.data(), p.k);
      for (int64_t i = row * segments; i < (row + 1) * segments; ++i) {
        for (int64_t c = 0; c < counts[i]; ++c)
          best.offer(scores[i * p.k + c], columns[i * p.k + c]);
      }
      write_row(best, p.k, p.indices + row * p.k);
    }
  });
}

/// Marks the columns of block b in a row's mask.
void mark_block(uint32_t* mask, int64_t block, int64_t b, int64_t columns) {
  const int64_t end = std::min((b + 1) * block, columns);
  for (int64_t c = b * block; c < end; ++c) mask[c / 32] |= 1u << (c % 32);
}

}  // namespace

Status topk(KernelContext& ctx, const TopkParams& p) {
  ArenaScope scope(*ctx.arena);
  const int64_t segments =
      std::min(ceil_div(ctx.pool->threads(), p.rows), p.columns / kLeastSegment);
  if (segments > 1) {
    topk_segmented(ctx, p, segments);
    return {};
  }
  const RowKernels& k = row_kernels(ctx);
  WorkerScratch scratch(ctx, BestColumns::scratch_bytes(p.k));
  ctx.pool->parallel_for(p.rows, 1, [&](int64_t begin, int64_t end) {
    const WorkerScratch::Lease lease(scratch);
    for (int64_t row = begin; row < end; ++row) {
      BestColumns best = best_in(lease.data(), p.k);
      best.scan(k, p.scores + row * p.score_stride, mask_of(p, row), 0, p.columns);
      write_row(best, p.k, p.indices + row * p.k);
    }
  });
  return {};
}

Status candidate_blocks(KernelContext& ctx, const CandidateBlocksParams& p) {
  const RowKernels& k = row_kernels(ctx);
  const int64_t blocks = ceil_div(p.columns, p.block);
  const int64_t keep = std::min(p.keep, blocks);
  const int64_t score_bytes = align_up(blocks * 4, Buffer::kAlignment);
  ArenaScope scope(*ctx.arena);
  WorkerScratch scratch(ctx, score_bytes + BestColumns::scratch_bytes(keep));
  ctx.pool->parallel_for(p.rows, 1, [&](int64_t begin, int64_t end) {
    const WorkerScratch::Lease lease(scratch);
    float* block_scores = reinterpret_cast<float*>(lease.data());
    for (int64_t row = begin; row < end; ++row) {
      uint32_t* mask = p.mask + row * p.mask_stride;
      std::fill_n(mask, p.mask_stride, 0u);
      const int64_t visible = std::min(p.visible[row], p.columns);
      if (visible == 0) continue;
      const float* scores = p.scores + row * p.score_stride;
      const int64_t row_blocks = ceil_div(visible, p.block);
      for (int64_t b = 0; b < row_blocks; ++b) {
        const int64_t last = std::min((b + 1) * p.block, p.columns);
        block_scores[b] = *std::max_element(scores + b * p.block, scores + last);
      }
      // The reference pins the newest block, so that what was just said can always be chosen.
      block_scores[row_blocks - 1] = std::numeric_limits<float>::infinity();
      BestColumns best = best_in(lease.data() + score_bytes, keep);
      best.scan(k, block_scores, nullptr, 0, row_blocks);
      const int64_t count = best.finish();
      for (int64_t i = 0; i < count; ++i) mark_block(mask, p.block, best.columns()[i], p.columns);
    }
  });
  return {};
}

}  // namespace cedar::kernels::cpu
