#pragma once
// Where packed rows live: KV blocks reached through a page table, and window rings.

#include <cstdint>

#include "core/check.h"

namespace cedar::kernels {

/// The main KV rows, or the index keys, of one KV source in a pool of KV blocks.
/// Row j of batch sequence s is at
///   base + page_table[s * max_pages + j / rows_per_page] * page_bytes + offset_bytes + (j % rows_per_page) * row_bytes
struct PagedRows {
  uint8_t* base = nullptr;
  const int32_t* page_table = nullptr;  // [sequences, max_pages]
  int64_t max_pages = 0;
  int64_t page_bytes = 0;
  int64_t offset_bytes = 0;  // of this source's rows inside a block
  int64_t row_bytes = 0;
  int64_t rows_per_page = 0;

  uint8_t* row(int64_t sequence, int64_t j) const {
    const int64_t page = page_table[sequence * max_pages + j / rows_per_page];
    return base + page * page_bytes + offset_bytes + (j % rows_per_page) * row_bytes;
  }
};

/// One layer's window rings: slot s holds `window` packed Q8 rows; position p lives in ring row p mod window.
struct WindowRings {
  uint8_t* base = nullptr;  // of this layer
  int64_t slot_stride_bytes = 0;
  int64_t row_bytes = 0;
  int64_t window = 0;

  uint8_t* row(int64_t slot, int64_t position) const {
    return base + slot * slot_stride_bytes + (position % window) * row_bytes;
  }
};

/// The window rows one query reads, oldest first: positions [ring_begin, ring_end) from the ring of `slot`,
/// then rows [chunk_begin, chunk_end) of the current chunk's own rows.
struct WindowSpan {
  int32_t slot = 0;
  int64_t ring_begin = 0;
  int64_t ring_end = 0;
  int32_t chunk_begin = 0;
  int32_t chunk_end = 0;
};

}  // namespace cedar::kernels
