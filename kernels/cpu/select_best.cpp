#include "kernels/cpu/select_best.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace cedar::kernels::cpu {

BestColumns::BestColumns(int64_t k, float* scores, int32_t* columns)
    : k_(k),
      scores_(scores),
      columns_(columns),
      threshold_(-std::numeric_limits<float>::infinity()) {}

void BestColumns::cut() {
  if (count_ <= k_) return;
  // The columns' upper part of the scratch is free: scores_ has capacity(k) places, and as many
  // follow the columns for the selection.
  float* order = reinterpret_cast<float*>(columns_ + capacity(k_));
  std::copy_n(scores_, count_, order);
  std::nth_element(order, order + (k_ - 1), order + count_, std::greater<float>());
  const float worst = order[k_ - 1];
  int64_t above = 0;
  for (int64_t i = 0; i < count_; ++i) above += scores_[i] > worst ? 1 : 0;
  int64_t ties = k_ - above;
  int64_t kept = 0;
  for (int64_t i = 0; i < count_; ++i) {
    const bool tie = scores_[i] == worst && ties > 0;
    if (tie) --ties;
    if (tie || scores_[i] > worst) {
      scores_[kept] = scores_[i];
      columns_[kept] = columns_[i];
      ++kept;
    }
  }
  count_ = kept;
  threshold_ = worst;
}

void BestColumns::scan(const RowKernels& kernels, const float* scores, const uint32_t* mask,
                       int64_t begin, int64_t end) {
  if (k_ == 0) return;
  SelectScan scan;
  scan.scores = scores;
  scan.mask = mask;
  scan.begin = begin;
  scan.end = end;
  scan.found_scores = scores_;
  scan.found_columns = columns_;
  scan.capacity = capacity(k_);
  while (scan.begin < end) {
    scan.threshold = threshold_;
    scan.count = count_;
    scan.begin = kernels.select_scan(scan);
    count_ = scan.count;
    if (scan.begin < end) cut();
  }
}

void BestColumns::offer(float score, int32_t column) {
  if (k_ == 0 || !(score > threshold_)) return;
  if (count_ == capacity(k_)) {
    cut();
    if (!(score > threshold_)) return;
  }
  scores_[count_] = score;
  columns_[count_] = column;
  ++count_;
}

int64_t BestColumns::finish() {
  if (k_ > 0) cut();
  return count_;
}

}  // namespace cedar::kernels::cpu
