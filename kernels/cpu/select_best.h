#pragma once
// The k best of a stream of (score, column) pairs whose columns arrive in ascending order.

#include <cstdint>

#include "kernels/cpu/row_kernels.h"

namespace cedar::kernels::cpu {

/// Keeps every pair that may still be among the k best: those above the k-th best score seen so
/// far. A later column with that very score loses the tie, so "above" is exact. When the buffer
/// fills it is cut back to k.
class BestColumns {
 public:
  /// Room for `capacity(k)` pairs at each pointer; both belong to the caller.
  BestColumns(int64_t k, float* scores, int32_t* columns);

  static constexpr int64_t capacity(int64_t k) { return 4 * k + 1024; }
  static constexpr int64_t scratch_bytes(int64_t k) { return capacity(k) * 12; }

  /// Scans columns [begin, end) of a row; begin is a multiple of 32 and not below any earlier
  /// column.
  void scan(const RowKernels& kernels, const float* scores, const uint32_t* mask, int64_t begin,
            int64_t end);
  /// Takes a pair as the scan would.
  void offer(float score, int32_t column);

  /// Cuts the buffer back to the k best, columns ascending, and returns how many there are.
  int64_t finish();
  const float* scores() const { return scores_; }
  const int32_t* columns() const { return columns_; }

 private:
  void cut();

  int64_t k_;
  float* scores_;
  int32_t* columns_;
  int64_t count_ = 0;
  float threshold_;
};

}  // namespace cedar::kernels::cpu
