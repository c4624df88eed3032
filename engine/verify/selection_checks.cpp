// Discrete choices on given inputs: Engram row ids of the prompts, top-k lists and candidate pools of the
// recorded scores.

#include <algorithm>

#include "core/units.h"
#include "engine/verify/checks.h"
#include "engine/verify/selection.h"

namespace cedar::engine::verify {

namespace {

void check_hash_ids(Session& session, GoldenFile& file, const Prompt& prompt) {
  const std::vector<LayerId>& layers = session.config().engram_layer_ids;
  if (layers.empty()) return;
  const int64_t columns = session.model().engram.columns;
  const TensorView* expected =
      file.tensor(prompt.name + ".hash_ids", DType::i64,
                  {prompt.length(), static_cast<int64_t>(layers.size()), columns});
  if (expected == nullptr) return;
  const auto found = engram_row_ids(session, prompt.tokens);
  if (!found) return session.report().fail(kHashIds, prompt.name, found.error());
  session.report().check(kHashIds, count_different(*found, integers(*expected)),
                         prompt.name + ".hash_ids");
}

void check_topk_on_scores(Session& session, GoldenFile& file, const Prompt& prompt) {
  for (const LayerTensor& entry : file.layer_tensors(prompt.name + ".", "score")) {
    if (!session.has_layer(entry.layer)) continue;
    const model::LayerPlan& plan = session.model().plan.layers[static_cast<size_t>(entry.layer)];
    if (!plan.scores()) continue;
    const int64_t rows = prompt.length(), columns = rows / plan.ratio;
    const int64_t k = std::min(session.config().index_topk, columns);
    const std::string base = prompt.name + ".layer" + std::to_string(entry.layer);
    const TensorView* score = file.tensor(entry.name, DType::f32, {rows, columns});
    if (score == nullptr) continue;
    const float* scores = score->as<float>().data();
    const TensorView* pool = file.tensor(prompt.name + ".candidates", DType::boolean, {rows, rows});
    if (plan.makes_candidates && pool != nullptr) {
      const auto found =
          pool_of(session.ctx(), session.config(), scores, visible_rows(rows, plan.ratio), columns);
      if (!found) {
        session.report().fail(kCandidatesOnScores, base, found.error());
      } else {
        check_pools(session.report(), kCandidatesOnScores, prompt.name + ".candidates",
                    pool_rows(*found, ceil_div(columns, 32), rows, columns), integers(*pool),
                    columns, session.config().candidate_block_size, Scores{scores, columns}, 0);
      }
    }
    const TensorView* topk = file.tensor(base + ".topk", DType::i32, {rows, k});
    if (topk == nullptr || (plan.uses_candidates && pool == nullptr)) continue;
    const auto allowed =
        plan.uses_candidates ? pool_words(integers(*pool), columns) : std::vector<uint32_t>{};
    const auto found = topk_of(session.ctx(), scores, rows, columns, k, allowed);
    if (!found) {
      session.report().fail(kTopkOnScores, base, found.error());
      continue;
    }
    check_lists(session.report(), kTopkOnScores, base + ".topk", *found, Lists{integers(*topk), k},
                Scores{scores, columns}, 0);
  }
}

}  // namespace

void check_selection(Session& session) {
  GoldenFile* file = session.golden().file("selection");
  if (file == nullptr) return session.report().skip("selection", "selection.safetensors is absent");
  for (const Prompt& prompt : session.prompts()) {
    session.progress("selection", prompt.name);
    check_hash_ids(session, *file, prompt);
    check_topk_on_scores(session, *file, prompt);
  }
}

}  // namespace cedar::engine::verify
