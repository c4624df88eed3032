#pragma once
// Indexer scores (spec/model.md 7.6): score(t, j) = sum_h wt[t, h] * relu(q[t, h] . k[j]), j <
// visible[t]; -inf from there on. `bf16` rounds the dot products, the products and the sum as the
// release's reference does; `fp32` keeps everything in fp32 (what serving uses).

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/paged_rows.h"
#include "kernels/quantize.h"

namespace cedar::kernels {

enum class IndexScoreMode : uint8_t { bf16, fp32 };

/// Rotates and quantises indexer queries: [rows, heads, columns] bf16 -> packed Q4X rows.
struct IndexQueryParams {
  const Bf16* q = nullptr;             // [rows, heads * columns]
  const int64_t* positions = nullptr;  // [rows]
  const float* inv_freq = nullptr;
  uint8_t* packed = nullptr;  // [rows, heads, packed_row_bytes(q4x, columns)]
  int64_t rows = 0, heads = 0, columns = 0, rotary_dim = 0;
};
Status index_query(KernelContext& ctx, const IndexQueryParams& p);

struct IndexScoreParams {
  const uint8_t* q = nullptr;          // [rows, heads, packed q4x row]
  const Bf16* head_weights = nullptr;  // [rows, heads]: weights_proj output, before the factor
  float head_weight_scale = 0;         // columns^-0.5 * heads^-0.5
  PagedRows keys;                      // packed q4x rows
  const int32_t* sequences = nullptr;  // [rows]
  /// How many neighbouring rows have one sequence, about: a hint that changes speed alone.
  int64_t rows_per_sequence = 1;
  const int64_t* visible = nullptr;  // [rows] number of visible keys
  /// Optional candidate pool (candidate_blocks()): keys whose bit c of word c / 32 is clear count
  /// as invisible and are not computed, so that a row costs what its pool costs. null: all keys.
  const uint32_t* mask = nullptr;  // [rows, mask_stride]
  int64_t mask_stride = 0;         // in words, >= ceil(max visible / 32)
  float* scores = nullptr;         // [rows, score_stride]
  int64_t score_stride = 0;        // >= max visible
  int64_t rows = 0, heads = 0, columns = 0;
  IndexScoreMode mode = IndexScoreMode::fp32;
};
/// Writes all score_stride entries of every row (-inf where not visible).
Status index_score(KernelContext& ctx, const IndexScoreParams& p);

}  // namespace cedar::kernels
