#pragma once
// Turning projected rows into cache rows (spec/model.md 7.2, 7.4 - 7.6): norm, rotate, quantise, store.

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/paged_rows.h"
#include "kernels/quantize.h"

namespace cedar::kernels {

/// out[i] = pack(format, rotate(norm(x[i]), position[i])), stored densely or into pages.
struct KvWriteParams {
  RowFormat format = RowFormat::q8;
  const Bf16* x = nullptr;  // [rows, x_stride]
  int64_t x_stride = 0;
  const Bf16* norm_weight = nullptr;  // [columns]; null: x is already normalised
  float eps = 0;
  const int64_t* positions = nullptr;  // [rows], rotary position
  const float* inv_freq = nullptr;     // [rotary_dim / 2]
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t rotary_dim = 0;  // the last rotary_dim of columns

  uint8_t* dense = nullptr;              // [rows, packed_row_bytes]; or, when null:
  PagedRows paged;                       // target pages
  const int32_t* sequences = nullptr;    // [rows] batch sequence of each row
  const int64_t* target_rows = nullptr;  // [rows] row j inside the sequence; negative: not stored
};
Status kv_write(KernelContext& ctx, const KvWriteParams& p);

/// Copies chunk rows into window rings after the chunk's attention.
struct RingWriteParams {
  WindowRings rings;
  const uint8_t* chunk_rows = nullptr;  // [rows, row_bytes]
  const int32_t* slots = nullptr;       // [rows]; negative: row is not kept
  const int64_t* positions = nullptr;   // [rows]
  int64_t rows = 0;
};
/// REQUIRES: no two kept rows of one slot fall on the same ring row.
Status ring_write(KernelContext& ctx, const RingWriteParams& p);

}  // namespace cedar::kernels
