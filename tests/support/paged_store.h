#pragma once
// Packed rows behind page tables, as KV blocks hold them, filled with random data.

#include <algorithm>
#include <numeric>

#include "kernels/paged_rows.h"
#include "kernels/quantize.h"
#include "tests/support/backends.h"

namespace cedar::test {

/// `sequences` sequences of `rows_each` rows of `columns` channels, in pages of `rows_per_page`
/// rows that lie in the pool in random order, between other bytes. Rows of a page begin at `offset_bytes`,
/// at most 32.
class PagedStore {
 public:
  PagedStore(Device device, kernels::RowFormat format, int64_t sequences, int64_t rows_each,
             int64_t columns, int64_t rows_per_page, uint32_t seed, int64_t offset_bytes = 20)
      : device_(device),
        format_(format),
        columns_(columns),
        rows_each_(rows_each),
        host_(layout(format, rows_each, columns, rows_per_page, offset_bytes)),
        values_(random_bf16(sequences * rows_each * columns, seed)),
        table_(page_table(sequences, seed)),
        pool_(device, fill(sequences)),
        device_table_(device, table_) {}

  kernels::PagedRows rows() {
    kernels::PagedRows rows = host_;
    rows.base = pool_.data();
    rows.page_table = device_table_.data();
    return rows;
  }
  /// What row j of a sequence dequantises to.
  std::vector<double> row(int64_t sequence, int64_t j) {
    std::vector<Bf16> x(static_cast<size_t>(columns_));
    kernels::dequantize_row(format_, packed_row(sequence, j).data(), columns_, x.data());
    return widened(x);
  }
  std::vector<uint8_t> packed_row(int64_t sequence, int64_t j) {
    kernels::PagedRows rows = host_;
    rows.base = pool_.data();
    rows.page_table = table_.data();
    std::vector<uint8_t> packed(static_cast<size_t>(host_.row_bytes));
    const Status copied =
        copy_to_host(device_, packed.data(), rows.row(sequence, j), host_.row_bytes);
    CEDAR_ASSERT(copied.has_value(), copied ? std::string() : copied.error().message());
    return packed;
  }

 private:
  static kernels::PagedRows layout(kernels::RowFormat format, int64_t rows_each, int64_t columns,
                                   int64_t rows_per_page, int64_t offset_bytes) {
    kernels::PagedRows rows;
    rows.row_bytes = kernels::packed_row_bytes(format, columns);
    rows.rows_per_page = rows_per_page;
    rows.max_pages = (rows_each + rows_per_page - 1) / rows_per_page + 1;
    rows.offset_bytes = offset_bytes;
    rows.page_bytes = 32 + rows_per_page * rows.row_bytes;
    return rows;
  }
  std::vector<int32_t> page_table(int64_t sequences, uint32_t seed) const {
    std::vector<int32_t> table(static_cast<size_t>(sequences * host_.max_pages));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(seed + 1));
    return table;
  }
  std::vector<uint8_t> fill(int64_t sequences) {
    std::vector<uint8_t> bytes(table_.size() * static_cast<size_t>(host_.page_bytes), 0xa5);
    kernels::PagedRows rows = host_;
    rows.base = bytes.data();
    rows.page_table = table_.data();
    for (int64_t s = 0; s < sequences; ++s) {
      for (int64_t j = 0; j < rows_each_; ++j) {
        kernels::quantize_row(format_, values_.data() + (s * rows_each_ + j) * columns_, columns_,
                              rows.row(s, j));
      }
    }
    return bytes;
  }

  Device device_;
  kernels::RowFormat format_;
  int64_t columns_;
  int64_t rows_each_;
  kernels::PagedRows host_;
  std::vector<Bf16> values_;
  std::vector<int32_t> table_;
  DeviceArray<uint8_t> pool_;
  DeviceArray<int32_t> device_table_;
};

}  // namespace cedar::test
