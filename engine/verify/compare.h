#pragma once
// The measures of kinds.h.

#include <cstdint>
#include <span>
#include <vector>

#include "core/float_formats.h"

namespace cedar::engine::verify {

/// |a - reference| / |reference| in double. Two zero vectors: 0. Different sizes, a NaN, or a reference of
/// zero norm that `a` does not share: infinite.
double relative_l2(std::span<const float> a, std::span<const float> reference);

/// Distance of two numbers in steps of bf16 at the larger of them.
double bf16_steps_between(float a, float b);
/// The largest distance of two elements, in steps at the larger of them or at the root mean square of the
/// reference's row of `columns` elements, whichever is more: an element that cancels to almost nothing keeps
/// the error of its terms. Infinite for different sizes and NaN.
double worst_bf16_steps(std::span<const float> a, std::span<const float> reference,
                        int64_t columns);

/// Elements that differ, plus the difference of the sizes. NaN equals NaN.
double count_different(std::span<const float> a, std::span<const float> reference);
template <class A, class B>
double count_different(const std::vector<A>& a, const std::vector<B>& b) {
  const size_t common = a.size() < b.size() ? a.size() : b.size();
  size_t different = (a.size() > b.size() ? a.size() : b.size()) - common;
  for (size_t i = 0; i < common; ++i) different += a[i] == b[i] ? 0 : 1;
  return static_cast<double>(different);
}

std::vector<float> widen(const Bf16* x, int64_t count);

/// Rows of chosen columns, -1 where a row has fewer.
struct Lists {
  std::vector<int64_t> entries;  // [rows, width]
  int64_t width = 0;
};

/// What decided the choice, for judging differences: scores [rows, stride].
struct Scores {
  const float* values = nullptr;  // null: nothing is excused
  int64_t stride = 0;
};

struct ListDifference {
  int64_t entries = 0;            // of the reference, over all rows
  int64_t differing = 0;          // of them, not in the other list
  int64_t rows = 0;               // rows with a difference
  int64_t unexcused = 0;          // rows whose differing entries are not tied
  int64_t unexcused_entries = 0;  // differing entries of those rows
};
/// A row's difference is excused when all scores of its differing entries lie within `steps` bf16 steps of
/// one another (0: are equal): which of them a selection keeps is then undefined.
/// REQUIRES: both lists have the same number of rows, entries inside the score rows.
ListDifference compare_lists(const Lists& a, const Lists& reference, const Scores& scores,
                             double steps);

}  // namespace cedar::engine::verify
