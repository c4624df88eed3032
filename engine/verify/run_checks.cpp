// Whole runs: prefill of every prompt, then greedy decoding in both behaviours. Rounding saturates in the
// quantisers of a whole run, so the limits here are wide and these checks are a last line only; the ids are
// exact because the recorded choices have wide gaps.

#include <algorithm>
#include <cmath>

#include "engine/verify/checks.h"
#include "engine/verify/runs.h"
#include "engine/verify/selection.h"

namespace cedar::engine::verify {

TokenId best_token(const std::vector<float>& logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void check_top_values(Session& session, GoldenFile& file, const Kind& kind,
                      const std::string& ids_name, const std::string& values_name,
                      const std::vector<std::vector<float>>& rows) {
  const auto count = std::ssize(rows);
  const TensorView* ids = file.tensor(ids_name, DType::i32, {count, kAny});
  const TensorView* values = file.tensor(values_name, DType::f32, {count, kAny});
  if (ids == nullptr || values == nullptr) return;
  if (ids->shape != values->shape) {
    return session.report().fail(kind, values_name, "ids and values differ in shape");
  }
  std::vector<float> found;
  const std::vector<int64_t> columns = integers(*ids);
  for (size_t i = 0; i < columns.size(); ++i) {
    const std::vector<float>& row = rows[i / static_cast<size_t>(ids->shape[1])];
    const bool inside = columns[i] >= 0 && columns[i] < std::ssize(row);
    found.push_back(inside ? row[static_cast<size_t>(columns[i])] : NAN);
  }
  session.report().check(kind, relative_l2(found, floats(*values)), values_name);
}

void check_scores(Report& report, const Kind& kind, const std::string& what,
                  std::vector<float> found, std::vector<float> expected) {
  const size_t common = std::min(found.size(), expected.size());
  for (size_t i = 0; i < common; ++i) {
    if (std::isinf(found[i]) && found[i] == expected[i]) found[i] = expected[i] = 0;
  }
  report.check(kind, relative_l2(found, expected), what);
}

void check_share(Report& report, const Kind& kind, const std::string& what, const Lists& found,
                 const Lists& expected, const Scores& scores) {
  if (found.width != expected.width || found.entries.size() != expected.entries.size()) {
    return report.fail(kind, what, "lists of another shape than recorded");
  }
  check_share(report, kind, what, compare_lists(found, expected, scores, kTieSteps));
}

void check_share(Report& report, const Kind& kind, const std::string& what,
                 const ListDifference& d) {
  const auto entries = static_cast<double>(std::max<int64_t>(d.entries, 1));
  report.check(
      kind, static_cast<double>(d.unexcused_entries) / entries, what,
      std::to_string(d.unexcused_entries) + " of " + std::to_string(d.entries) + " entries");
}

ListDifference compare_pools(const std::vector<int64_t>& found,
                             const std::vector<int64_t>& expected, int64_t columns, int64_t block,
                             const Scores& scores) {
  const int64_t rows = std::ssize(expected) / columns;
  const std::vector<float> best = block_scores(scores, rows, columns, block);
  const Lists kept = block_lists(expected, rows, columns, block);
  return compare_lists(block_lists(found, rows, columns, block), kept,
                       Scores{best.data(), kept.width}, kTieSteps);
}

void check_pool_share(Report& report, const Kind& kind, const std::string& what,
                      const std::vector<int64_t>& found, const std::vector<int64_t>& expected,
                      int64_t columns, int64_t block, const Scores& scores) {
  if (found.size() != expected.size()) return report.fail(kind, what, "pools of another size");
  check_share(report, kind, what, compare_pools(found, expected, columns, block, scores));
}

namespace {

/// "{p}.logits" and "{p}.logits_tail16": the last rows; the tensor says how many.
void check_rows(Session& session, GoldenFile& file, const Prompt& prompt,
                const std::vector<std::vector<float>>& rows) {
  const int64_t vocab = session.config().vocab_size;
  for (const std::string& name : file.names()) {
    if (name != prompt.name + ".logits" && !name.starts_with(prompt.name + ".logits_tail"))
      continue;
    const TensorView* expected = file.tensor(name, DType::f32, {kAny, vocab});
    if (expected == nullptr) continue;
    if (expected->shape[0] > std::ssize(rows)) {
      session.report().fail(kRunLogits, name, "more rows than the prompt has tokens");
      continue;
    }
    std::vector<float> found;
    for (auto row = rows.end() - expected->shape[0]; row != rows.end(); ++row) {
      found.insert(found.end(), row->begin(), row->end());
    }
    session.report().check(kRunLogits, relative_l2(found, floats(*expected)), name);
  }
}

void check_prefill(Session& session, GoldenFile& file, const Prompt& prompt) {
  auto sequence = OpenSequence::open(session.runner(), prompt.length());
  if (!sequence) return session.report().fail(kRunLogits, prompt.name, sequence.error());
  const auto output = sequence->run(prompt.tokens, true);
  if (!output) return session.report().fail(kRunLogits, prompt.name, output.error());
  const std::string last = prompt.name + ".last_logits";
  const TensorView* expected = file.tensor(last, DType::f32, {session.config().vocab_size});
  if (expected != nullptr) {
    session.report().check(kRunLogits, relative_l2(output->logits.back(), floats(*expected)), last);
  }
  check_rows(session, file, prompt, output->logits);
  check_top_values(session, file, kRunLogits, prompt.name + ".top8_ids",
                   prompt.name + ".top8_values", output->logits);
}

void check_greedy(Session& session, GoldenFile& file, const Prompt& prompt, Behaviour behaviour) {
  const std::string base = prompt.name + ".greedy." + to_string(behaviour) + ".";
  const TensorView* ids = file.tensor(base + "ids", DType::i32, {kAny});
  if (ids == nullptr) return;
  const int64_t steps = ids->shape[0];
  Report& report = session.report();
  auto sequence = OpenSequence::open(session.runner(behaviour), prompt.length() + steps);
  if (!sequence) return report.fail(kGreedyIds, base + "ids", sequence.error());
  std::vector<TokenId> next = prompt.tokens;
  std::vector<TokenId> chosen;
  std::vector<std::vector<float>> distributions;
  // The last pass feeds the last token; its choice is not recorded, its logits are.
  for (int64_t step = 0; step <= steps; ++step) {
    auto output = sequence->run(next);
    if (!output) return report.fail(kGreedyIds, base + "ids", output.error());
    distributions.push_back(std::move(output->logits.back()));
    next = {best_token(distributions.back())};
    if (step < steps) chosen.push_back(next.front());
  }
  report.check(kGreedyIds, count_different(chosen, integers(*ids)), base + "ids");
  const TensorView* last =
      file.tensor(base + "last_logits", DType::f32, {session.config().vocab_size});
  if (last != nullptr) {
    report.check(kGreedyLogits, relative_l2(distributions.back(), floats(*last)),
                 base + "last_logits");
  }
  distributions.pop_back();
  check_top_values(session, file, kGreedyLogits, base + "top8_ids", base + "top8_values",
                   distributions);
}

}  // namespace

void check_runs(Session& session) {
  GoldenFile* file = session.golden().file("logits");
  if (file == nullptr) return session.report().skip("run", "logits.safetensors is absent");
  for (const Prompt& prompt : session.prompts()) {
    session.progress("run", prompt.name);
    check_prefill(session, *file, prompt);
    for (Behaviour behaviour : kBehaviours) check_greedy(session, *file, prompt, behaviour);
  }
}

}  // namespace cedar::engine::verify
