#pragma once
// Per row the k best scores, and the candidate pool (spec/model.md 7.6, 7.7).

#include <cstdint>

#include "kernels/kernel_context.h"

namespace cedar::kernels {

constexpr int32_t kNoIndex = -1;

/// The k highest scores of each row; a tie goes to the lower column; -inf is never chosen. Chosen columns in
/// ascending order, then kNoIndex. NaN is a caller bug.
struct TopkParams {
  const float* scores = nullptr;  // [rows, score_stride]
  int64_t score_stride = 0;
  int64_t columns = 0;
  /// Optional candidate mask [rows, mask_stride] of 32-bit words, bit c of word c/32; null: all columns.
  const uint32_t* mask = nullptr;
  int64_t mask_stride = 0;     // in words
  int32_t* indices = nullptr;  // [rows, k]
  int64_t rows = 0;
  int64_t k = 0;
};
Status topk(KernelContext& ctx, const TopkParams& p);

/// Columns in blocks of `block`; block score = max; the block of the newest visible column is pinned; the
/// `keep` best blocks with a score above -inf are kept (ties: lower block). Writes the pool as a bit mask.
struct CandidateBlocksParams {
  const float* scores = nullptr;  // [rows, score_stride], -inf where not visible
  int64_t score_stride = 0;
  const int64_t* visible = nullptr;  // [rows]; 0: empty pool
  uint32_t* mask = nullptr;          // [rows, mask_stride]
  int64_t mask_stride = 0;           // words, >= ceil(columns / 32)
  int64_t columns = 0;
  int64_t rows = 0;
  int64_t block = 8;
  int64_t keep = 2048;
};
Status candidate_blocks(KernelContext& ctx, const CandidateBlocksParams& p);

}  // namespace cedar::kernels
