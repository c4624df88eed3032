#include "engine/verify/compare.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace cedar::engine::verify {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// |a - b| in steps of bf16 numbers of magnitude `at`.
double steps_at(float a, float b, float at) {
  if (a == b) return 0;
  if (!std::isfinite(at) || std::isnan(a) || std::isnan(b)) return kInfinity;
  // bf16 keeps 8 significant bits; below the normal range its steps no longer shrink.
  const double step = std::ldexp(1.0, std::max(std::ilogb(at), -126) - 7);
  return std::fabs(static_cast<double>(a) - static_cast<double>(b)) / step;
}

/// The chosen columns of one row, sorted, without -1.
std::vector<int64_t> chosen(const Lists& lists, int64_t row) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < lists.width; ++i) {
    const int64_t entry = lists.entries[static_cast<size_t>(row * lists.width + i)];
    if (entry >= 0) out.push_back(entry);
  }
  std::sort(out.begin(), out.end());
  return out;
}

bool tied(const std::vector<int64_t>& columns, const float* scores, double steps) {
  const auto [low, high] = std::minmax_element(
      columns.begin(), columns.end(), [&](int64_t a, int64_t b) { return scores[a] < scores[b]; });
  return bf16_steps_between(scores[*low], scores[*high]) <= steps;
}

}  // namespace

double relative_l2(std::span<const float> a, std::span<const float> reference) {
  if (a.size() != reference.size()) return kInfinity;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(reference[i]);
    difference += d * d;
    norm += static_cast<double>(reference[i]) * static_cast<double>(reference[i]);
  }
  if (difference == 0) return 0;
  const double relative = std::sqrt(difference / norm);
  return std::isnan(relative) ? kInfinity : relative;
}

double bf16_steps_between(float a, float b) {
  return steps_at(a, b, std::max(std::fabs(a), std::fabs(b)));
}

double worst_bf16_steps(std::span<const float> a, std::span<const float> reference,
                        int64_t columns) {
  const auto width = static_cast<size_t>(columns);
  if (a.size() != reference.size() || a.size() % width != 0) return kInfinity;
  double worst = 0;
  for (size_t begin = 0; begin < a.size(); begin += width) {
    double squares = 0;
    for (size_t i = begin; i < begin + width; ++i) {
      squares += static_cast<double>(reference[i]) * static_cast<double>(reference[i]);
    }
    const auto typical = static_cast<float>(std::sqrt(squares / static_cast<double>(columns)));
    for (size_t i = begin; i < begin + width; ++i) {
      const float at = std::max({std::fabs(a[i]), std::fabs(reference[i]), typical});
      worst = std::max(worst, steps_at(a[i], reference[i], at));
    }
  }
  return worst;
}

double count_different(std::span<const float> a, std::span<const float> reference) {
  const size_t common = std::min(a.size(), reference.size());
  size_t different = std::max(a.size(), reference.size()) - common;
  for (size_t i = 0; i < common; ++i) {
    const bool both_nan = std::isnan(a[i]) && std::isnan(reference[i]);
    if (a[i] != reference[i] && !both_nan) ++different;
  }
  return static_cast<double>(different);
}

std::vector<float> widen(const Bf16* x, int64_t count) {
  std::vector<float> out;
  out.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out.push_back(static_cast<float>(x[i]));
  return out;
}

ListDifference compare_lists(const Lists& a, const Lists& reference, const Scores& scores,
                             double steps) {
  ListDifference out;
  const int64_t rows =
      reference.width == 0 ? 0 : static_cast<int64_t>(reference.entries.size()) / reference.width;
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<int64_t> expected = chosen(reference, row);
    const std::vector<int64_t> found = chosen(a, row);
    std::vector<int64_t> missing, differing;
    std::set_difference(expected.begin(), expected.end(), found.begin(), found.end(),
                        std::back_inserter(missing));
    std::set_symmetric_difference(expected.begin(), expected.end(), found.begin(), found.end(),
                                  std::back_inserter(differing));
    out.entries += static_cast<int64_t>(expected.size());
    if (differing.empty()) continue;
    const auto lost =
        static_cast<int64_t>(std::max(missing.size(), differing.size() - missing.size()));
    out.differing += lost;
    ++out.rows;
    const bool same_count = expected.size() == found.size();
    const bool excused = same_count && scores.values != nullptr &&
                         tied(differing, scores.values + row * scores.stride, steps);
    if (excused) continue;
    ++out.unexcused;
    out.unexcused_entries += lost;
  }
  return out;
}

}  // namespace cedar::engine::verify
