#include "engine/verify/recorder.h"

#include <algorithm>
#include <iterator>

namespace cedar::engine::verify {

void Recorder::clear() {
  scores.clear();
  topk.clear();
  pools.clear();
  pool_words.clear();
  routing.clear();
  layers.clear();
}

void Recorder::on_scores(LayerId layer, const float* values, int64_t stride, int64_t row_begin,
                         int64_t rows) {
  ScoreTable& table = scores[layer];
  table.stride = stride;
  table.values.resize(static_cast<size_t>((row_begin + rows) * stride));
  std::copy(values, values + rows * stride, table.values.begin() + row_begin * stride);
}

void Recorder::on_topk(LayerId layer, const int32_t* indices, int64_t k, int64_t rows) {
  topk[layer] = Lists{std::vector<int64_t>(indices, indices + rows * k), k};
}

void Recorder::on_candidates(LayerId layer, const uint32_t* mask, int64_t stride, int64_t rows) {
  pools[layer].assign(mask, mask + rows * stride);
  pool_words[layer] = stride;
}

void Recorder::on_experts(LayerId layer, const int32_t* experts, const float* weights, int64_t rows,
                          int64_t top) {
  Routing& r = routing[layer];
  r.experts = Lists{std::vector<int64_t>(experts, experts + rows * top), top};
  r.weights.assign(weights, weights + rows * top);
}

void Recorder::on_layer(LayerId layer, const Bf16* x, const float* /*pre*/, int64_t rows) {
  if (row_elements_ > 0) layers[layer] = widen(x, rows * row_elements_);
}

std::vector<float> score_rows(const ScoreTable& table, int64_t rows, int64_t columns) {
  std::vector<float> out;
  out.reserve(static_cast<size_t>(rows * columns));
  for (int64_t row = 0; row < rows; ++row) {
    // A table smaller than asked for stays short, so that every measure sees a difference.
    if (columns > table.stride || (row + 1) * table.stride > std::ssize(table.values)) break;
    const auto begin = table.values.begin() + row * table.stride;
    out.insert(out.end(), begin, begin + columns);
  }
  return out;
}

std::vector<int64_t> pool_rows(const std::vector<uint32_t>& words, int64_t stride, int64_t rows,
                               int64_t columns) {
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(rows * columns));
  for (int64_t row = 0; row < rows; ++row) {
    if (columns > stride * 32 || (row + 1) * stride > std::ssize(words)) break;
    for (int64_t c = 0; c < columns; ++c) {
      out.push_back((words[static_cast<size_t>(row * stride + c / 32)] >> (c % 32)) & 1U);
    }
  }
  return out;
}

}  // namespace cedar::engine::verify
