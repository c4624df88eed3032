#pragma once
// Addresses of packed rows on the device (kernels/paged_rows.h), and their values.

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/cuda/device_math.h"
#include "kernels/paged_rows.h"
#include "kernels/quantize.h"

namespace cedar::kernels::cuda {

__device__ __forceinline__ uint8_t* paged_row(const PagedRows& rows, int64_t sequence, int64_t j) {
  const int64_t page = rows.page_table[sequence * rows.max_pages + j / rows.rows_per_page];
  return rows.base + page * rows.page_bytes + rows.offset_bytes +
         j % rows.rows_per_page * rows.row_bytes;
}

__device__ __forceinline__ uint8_t* ring_row(const WindowRings& rings, int64_t slot,
                                             int64_t position) {
  return rings.base + slot * rings.slot_stride_bytes + position % rings.window * rings.row_bytes;
}

/// Columns 2 i and 2 i + 1 of a packed row as bf16, exact. `columns` is the row's length.
template <RowFormat kFormat>
__device__ __forceinline__ uint32_t row_pair(const uint8_t* packed, int columns, int i) {
  if constexpr (kFormat == RowFormat::q8) {
    const float scale = e8m0_to_float(packed[columns + 2 * i / static_cast<int>(kQ8Group)]);
    return pack_bf16(e4m3_to_float(packed[2 * i]) * scale,
                     e4m3_to_float(packed[2 * i + 1]) * scale);
  } else {
    static_assert(kFormat == RowFormat::q4n);
    const float scale = e4m3_to_float(packed[columns / 2 + 2 * i / static_cast<int>(kQ4nGroup)]);
    const uint8_t both = packed[i];
    return pack_bf16(e2m1_to_float(both & 15) * scale, e2m1_to_float(both >> 4) * scale);
  }
}

}  // namespace cedar::kernels::cuda
