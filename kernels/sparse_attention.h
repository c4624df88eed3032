#pragma once
// Attention of one shared KV head over window rows and selected global rows (spec/model.md 7.8), k = v.
// List of a query: its window rows, oldest first, then its top-k rows in ascending order; entries of kNoIndex
// are skipped before blocking. Blocks of 64 entries, online softmax in fp32, running maximum from -1e30,
// probabilities rounded to bf16 before the product with v, the sink added to the denominator at the end.

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/paged_rows.h"
#include "kernels/quantize.h"

namespace cedar::kernels {

struct SparseAttentionParams {
  Bf16* q = nullptr;  // [rows, heads, head_dim], already rotated; read only, but:
  /// CUDA: q is still to be rotated by inv_freq, positions and rotary_dim, in place or on the way.
  bool rotate_q = false;
  const float* sink = nullptr;  // [heads]
  float scale = 0;              // head_dim^-0.5

  const WindowSpan* window = nullptr;   // [rows]
  WindowRings rings;                    // packed q8
  const uint8_t* chunk_rows = nullptr;  // [chunk rows, packed q8 row]

  const int32_t* topk = nullptr;  // [rows, k] global rows; null: window only
  int64_t k = 0;
  PagedRows global;                    // packed q4n
  const int32_t* sequences = nullptr;  // [rows]

  /// With inv_freq set, o is rotated back (inverse) at the query's position before the final rounding to
  /// bf16 ... after it: o = bf16(rotate_inverse(bf16(O / L))), as the reference does.
  const float* inv_freq = nullptr;
  const int64_t* positions = nullptr;  // [rows]
  int64_t rotary_dim = 0;

  Bf16* o = nullptr;  // [rows, heads, head_dim]
  int64_t rows = 0, heads = 0, head_dim = 0;
};
Status sparse_attention(KernelContext& ctx, const SparseAttentionParams& p);

}  // namespace cedar::kernels
