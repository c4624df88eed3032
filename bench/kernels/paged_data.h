#pragma once
// Random packed rows behind one sequence's page table.

#include <vector>

#include "bench/kernels/bench_data.h"
#include "kernels/paged_rows.h"
#include "kernels/quantize.h"

namespace cedar::bench {

struct PagedData {
  static constexpr int64_t kRowsPerPage = 64;

  PagedData(kernels::RowFormat row_format, int64_t row_count, int64_t columns, uint64_t seed)
      : format(row_format) {
    const int64_t row_bytes = kernels::packed_row_bytes(format, columns);
    const int64_t pages = (row_count + kRowsPerPage - 1) / kRowsPerPage;
    bytes.resize(static_cast<size_t>(pages * kRowsPerPage * row_bytes));
    Random random(seed);
    const int64_t code_bytes = format == kernels::RowFormat::q8 ? columns : columns / 2;
    for (size_t i = 0; i < bytes.size(); ++i) {
      const uint8_t byte = static_cast<uint8_t>(random.next() >> 40);
      if (static_cast<int64_t>(i) % row_bytes >= code_bytes) {
        // Scales near one: E4M3 0x38 is 1, E8M0 127 is 1.
        bytes[i] = format == kernels::RowFormat::q4n ? 0x38 + byte % 8 : 124 + byte % 4;
      } else {
        // E4M3 codes below 2 in magnitude, any E2M1 code.
        bytes[i] = format == kernels::RowFormat::q8 ? byte & 0xbf : byte;
      }
    }
    table.resize(static_cast<size_t>(pages));
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
    rows.base = bytes.data();
    rows.page_table = table.data();
    rows.max_pages = pages;
    rows.page_bytes = kRowsPerPage * row_bytes;
    rows.row_bytes = row_bytes;
    rows.rows_per_page = kRowsPerPage;
  }
  PagedData(const PagedData&) = delete;
  PagedData& operator=(const PagedData&) = delete;

  std::vector<double> row(int64_t j, int64_t columns) const {
    std::vector<Bf16> x(static_cast<size_t>(columns));
    kernels::dequantize_row(format, rows.row(0, j), columns, x.data());
    std::vector<double> wide;
    for (const Bf16 value : x) wide.push_back(static_cast<double>(static_cast<float>(value)));
    return wide;
  }

  kernels::RowFormat format;
  std::vector<uint8_t> bytes;
  std::vector<int32_t> table;
  kernels::PagedRows rows;
};

}  // namespace cedar::bench
