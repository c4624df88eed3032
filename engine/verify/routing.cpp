#include "engine/verify/routing.h"

#include <algorithm>
#include <cmath>

namespace cedar::engine::verify {
namespace {

/// Selection scores of every expert for one row, in double, from the checkpoint's own tensors (spec/model.md
/// 8): independent of the kernel whose choice is being judged.
std::vector<double> selection_scores(const model::LayerTensors& tensors, const Bf16* u,
                                     bool image) {
  const int64_t experts = tensors.gate_weight.shape[0];
  const int64_t d = tensors.gate_weight.shape[1];
  const auto weight = tensors.gate_weight.as<Bf16>();
  const auto bias = (image ? tensors.gate_bias_vl : tensors.gate_bias).as<float>();
  std::vector<double> out;
  for (int64_t e = 0; e < experts; ++e) {
    double sum = 0;
    for (int64_t c = 0; c < d; ++c) {
      sum += static_cast<double>(static_cast<float>(weight[static_cast<size_t>(e * d + c)])) *
             static_cast<double>(static_cast<float>(u[c]));
    }
    const double softplus = sum > 20 ? sum : std::log1p(std::exp(sum));
    out.push_back(std::sqrt(softplus) + static_cast<double>(bias[static_cast<size_t>(e)]));
  }
  return out;
}

/// Whether the scores of all entries at which two orders differ lie within two bf16 steps.
bool tied(const std::vector<double>& scores, const int64_t* a, const int64_t* b, int64_t top) {
  float low = 0, high = 0;
  bool first = true;
  for (int64_t i = 0; i < top; ++i) {
    if (a[i] == b[i]) continue;
    for (int64_t expert : {a[i], b[i]}) {
      if (expert < 0 || expert >= std::ssize(scores)) return false;
      const auto score = static_cast<float>(scores[static_cast<size_t>(expert)]);
      low = first ? score : std::min(low, score);
      high = first ? score : std::max(high, score);
      first = false;
    }
  }
  return bf16_steps_between(low, high) <= kTieSteps;
}

}  // namespace

void check_routing(Session& session, const Kind& kind, const std::string& what, LayerId layer,
                   const Bf16* u, const Lists& found, const std::vector<int64_t>& expected) {
  Report& report = session.report();
  if (found.entries.size() != expected.size()) {
    return report.fail(kind, what, "the router chose another number of experts");
  }
  const model::LayerTensors& tensors =
      *session.model().checkpoint.layers[static_cast<size_t>(layer)];
  const int64_t d = session.config().hidden_size;
  const int64_t rows = std::ssize(expected) / found.width;
  int64_t wrong = 0, excused = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t* a = found.entries.data() + row * found.width;
    const int64_t* b = expected.data() + row * found.width;
    if (std::equal(a, a + found.width, b)) continue;
    const std::vector<double> scores = selection_scores(tensors, u + row * d, false);
    ++(tied(scores, a, b, found.width) ? excused : wrong);
  }
  report.check(kind, static_cast<double>(wrong), what, std::to_string(rows) + " rows");
  if (excused > 0) {
    report.note(kind, what + ": " + std::to_string(excused) +
                          " rows choose differently among scores within two bf16 steps");
  }
}

}  // namespace cedar::engine::verify
