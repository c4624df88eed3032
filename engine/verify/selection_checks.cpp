// Discrete choices on given inputs: Engram row ids of the prompts, top-k lists and candidate pools of the
// recorded scores.

#include <algorithm>

#include "core/units.h"
#include "engine/verify/checks.h"
#include "engine/verify/engram_sources.h"
#include "engine/verify/selection.h"
#include "kernels/topk.h"

namespace cedar::engine::verify {

Result<Lists> topk_of(kernels::KernelContext& ctx, const float* scores, int64_t rows,
                      int64_t columns, int64_t k, const std::vector<uint32_t>& pool) {
  std::vector<int32_t> indices(static_cast<size_t>(rows * k));
  kernels::TopkParams p;
  p.scores = scores;
  p.score_stride = columns;
  p.columns = columns;
  p.mask = pool.empty() ? nullptr : pool.data();
  p.mask_stride = ceil_div(columns, 32);
  p.indices = indices.data();
  p.rows = rows;
  p.k = k;
  CEDAR_CHECK_OK(kernels::topk(ctx, p));
  return Lists{std::vector<int64_t>(indices.begin(), indices.end()), k};
}

Result<std::vector<uint32_t>> pool_of(kernels::KernelContext& ctx, const model::ModelConfig& config,
                                      const float* scores, const std::vector<int64_t>& visible,
                                      int64_t columns) {
  const auto rows = static_cast<int64_t>(visible.size());
  const int64_t words = ceil_div(columns, 32);
  std::vector<uint32_t> mask(static_cast<size_t>(rows * words));
  kernels::CandidateBlocksParams p;
  p.scores = scores;
  p.score_stride = columns;
  p.visible = visible.data();
  p.mask = mask.data();
  p.mask_stride = words;
  p.columns = columns;
  p.rows = rows;
  p.block = config.candidate_block_size;
  p.keep = config.candidate_topk_blocks;
  CEDAR_CHECK_OK(kernels::candidate_blocks(ctx, p));
  return mask;
}

std::vector<uint32_t> pool_words(const std::vector<int64_t>& allowed, int64_t columns) {
  const int64_t words = ceil_div(columns, 32);
  const auto rows = columns == 0 ? 0 : std::ssize(allowed) / columns;
  std::vector<uint32_t> mask(static_cast<size_t>(rows * words));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < columns; ++c) {
      if (allowed[static_cast<size_t>(row * columns + c)] != 0) {
        mask[static_cast<size_t>(row * words + c / 32)] |= 1U << (c % 32);
      }
    }
  }
  return mask;
}

void check_lists(Report& report, const Kind& kind, const std::string& what, const Lists& found,
                 const Lists& expected, const Scores& scores, double steps) {
  if (found.width != expected.width || found.entries.size() != expected.entries.size()) {
    return report.fail(kind, what,
                       "lists of " + std::to_string(found.width) + " entries, recorded are " +
                           std::to_string(expected.width));
  }
  const ListDifference d = compare_lists(found, expected, scores, steps);
  report.check(kind, static_cast<double>(d.unexcused), what,
               std::to_string(d.differing) + " of " + std::to_string(d.entries) +
                   " entries differ in " + std::to_string(d.rows) + " rows");
  if (d.rows > d.unexcused) {
    report.note(kind, what + ": " + std::to_string(d.rows - d.unexcused) +
                          (steps == 0 ? " rows choose differently among equal scores at the cut"
                                      : " rows choose differently among scores within two bf16 "
                                        "steps"));
  }
}

std::vector<int64_t> visible_rows(int64_t rows, int64_t ratio) {
  std::vector<int64_t> out;
  for (int64_t position = 0; position < rows; ++position) out.push_back((position + 1) / ratio);
  return out;
}

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
        session.report().check(
            kCandidatesOnScores,
            count_different(pool_rows(*found, ceil_div(columns, 32), rows, columns), integers(*pool)),
            prompt.name + ".candidates");
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
    check_lists(session.report(), kTopkOnScores, base + ".topk", *found,
                Lists{integers(*topk), k}, Scores{scores, columns}, 0);
  }
}

}  // namespace

Result<std::vector<int64_t>> engram_row_ids(Session& session, const std::vector<TokenId>& tokens) {
  const model::ModelConfig& config = session.config();
  RecordedRows recorded(session.runner().engram());
  CEDAR_TRY(const std::unique_ptr<Frame> frame, Frame::open(session, tokens, &recorded));
  const auto rows = static_cast<int64_t>(tokens.size());
  const std::vector<Bf16> zero(static_cast<size_t>(rows * config.hc_mult * config.hidden_size));
  for (LayerId layer : config.engram_layer_ids) {
    Bf16* state = upload(frame->ctx(), zero);
    CEDAR_CHECK_OK(frame->forward.engram(layer, frame->batch, state));
  }
  const int64_t columns = session.model().engram.columns;
  std::vector<int64_t> out;
  for (int64_t row = 0; row < rows; ++row) {
    for (LayerId layer : config.engram_layer_ids) {
      const auto begin = recorded.rows[layer].begin() + row * columns;
      out.insert(out.end(), begin, begin + columns);
    }
  }
  return out;
}

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
