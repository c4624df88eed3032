#pragma once
// Keeps what a forward pass decided.

#include <map>
#include <vector>

#include "engine/observer.h"
#include "engine/verify/compare.h"

namespace cedar::engine::verify {

struct ScoreTable {
  std::vector<float> values;  // [rows, stride]
  int64_t stride = 0;
  Scores view() const { return {values.data(), stride}; }
};

struct Routing {
  Lists experts;
  std::vector<float> weights;  // [rows, experts.width]
};

/// Of the last step: clear() before each.
class Recorder final : public ForwardObserver {
 public:
  void clear();

  void on_scores(LayerId layer, const float* scores, int64_t stride, int64_t row_begin,
                 int64_t rows) override;
  void on_topk(LayerId layer, const int32_t* indices, int64_t k, int64_t rows) override;
  void on_candidates(LayerId layer, const uint32_t* mask, int64_t stride, int64_t rows) override;
  void on_experts(LayerId layer, const int32_t* experts, const float* weights, int64_t rows,
                  int64_t top) override;
  void on_layer(LayerId layer, const Bf16* x, const float* pre, int64_t rows) override;

  /// Values of a layer's output x are kept as [rows, row_elements]; 0 keeps none.
  void keep_layers(int64_t row_elements) { row_elements_ = row_elements; }

  std::map<LayerId, ScoreTable> scores;
  std::map<LayerId, Lists> topk;
  std::map<LayerId, std::vector<uint32_t>> pools;  // [rows, words]
  std::map<LayerId, int64_t> pool_words;
  std::map<LayerId, Routing> routing;
  std::map<LayerId, std::vector<float>> layers;

 private:
  int64_t row_elements_ = 0;
};

/// `columns` values of every row, without the stride's padding.
std::vector<float> score_rows(const ScoreTable& table, int64_t rows, int64_t columns);
/// A pool as one byte a column, [rows, columns].
std::vector<int64_t> pool_rows(const std::vector<uint32_t>& words, int64_t stride, int64_t rows,
                               int64_t columns);

}  // namespace cedar::engine::verify
