#pragma once
// Addresses of packed rows on the device (kernels/paged_rows.h), and their values.

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/cuda/device_math.h"
#include "kernels/kv_write.h"
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

/// Copies row `row` of a chunk into its ring, if it is to be kept; by a block of `threads` threads.
__device__ __forceinline__ void keep_window_row(const RingWriteParams& p, int64_t row,
                                                int threads) {
  const int64_t slot = p.slots[row];
  if (slot < 0) return;
  uint8_t* to = ring_row(p.rings, slot, p.positions[row]);
  const uint8_t* from = p.chunk_rows + row * p.rings.row_bytes;
  const auto address = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  if (((address | static_cast<uintptr_t>(p.rings.row_bytes)) & 3) == 0) {
    for (int64_t i = threadIdx.x; i < p.rings.row_bytes / 4; i += threads) {
      reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(from)[i];
    }
  } else {
    for (int64_t i = threadIdx.x; i < p.rings.row_bytes; i += threads) to[i] = from[i];
  }
}

}  // namespace cedar::kernels::cuda
