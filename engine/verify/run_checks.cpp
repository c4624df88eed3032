// Whole runs: prefill of every prompt, then greedy decoding in both behaviours. Rounding saturates in the
// quantisers of a whole run, so the limits here are wide and these checks are a last line only; the ids are
// exact because the recorded choices have wide gaps.

#include <algorithm>
#include <cmath>

#include "engine/verify/cache_rows.h"
#include "engine/verify/checks.h"
#include "engine/verify/runs.h"

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
                 const Lists& expected) {
  if (found.width != expected.width || found.entries.size() != expected.entries.size()) {
    return report.fail(kind, what, "lists of another shape than recorded");
  }
  const ListDifference d = compare_lists(found, expected, {}, 0);
  const double share =
      d.entries == 0 ? 0 : static_cast<double>(d.differing) / static_cast<double>(d.entries);
  report.check(kind, share, what,
               std::to_string(d.differing) + " of " + std::to_string(d.entries) + " entries");
}

namespace {

constexpr CacheKinds kRunCaches = {kRunWindow, kRunMainKv, kRunIndexKeys, kRunOpenGroup};

class PromptRun {
 public:
  PromptRun(Session& session, const Prompt& prompt) : session_(session), prompt_(prompt) {}

  void run() {
    auto sequence = OpenSequence::open(session_.runner(), prompt_.length());
    if (!sequence) return failed(sequence.error());
    const model::ModelConfig& config = session_.config();
    recorder_.keep_layers(config.hc_mult * config.hidden_size);
    auto output = sequence->run(prompt_.tokens, true, &recorder_);
    if (!output) return failed(output.error());
    check_logits(output->logits);
    check_layers();
    check_selections();
    check_caches(session_, sequence->runner().store(), sequence->slot(), prompt_, kRunCaches);
    check_main_hidden(*output);
  }

 private:
  void failed(const Error& error) { session_.report().fail(kRunLogits, prompt_.name, error); }
  std::string name(const std::string& suffix) const { return prompt_.name + "." + suffix; }

  void check_logits(const std::vector<std::vector<float>>& rows) {
    GoldenFile* file = session_.golden().file("logits");
    if (file == nullptr) return;
    const int64_t vocab = session_.config().vocab_size;
    const int64_t n = prompt_.length();
    const TensorView* last = file->tensor(name("last_logits"), DType::f32, {vocab});
    if (last != nullptr) {
      session_.report().check(kRunLogits, relative_l2(rows.back(), floats(*last)),
                              name("last_logits"));
    }
    check_tail(*file, name("logits"), rows, n);
    for (const std::string& tensor : file->names()) {
      // "{p}.logits_tail16": the last rows; the tensor says how many.
      if (!tensor.starts_with(name("logits_tail"))) continue;
      const TensorView* tail = file->tensor(tensor, DType::f32, {kAny, vocab});
      if (tail != nullptr && tail->shape[0] <= n) check_tail(*file, tensor, rows, tail->shape[0]);
    }
    check_top_values(session_, *file, kRunLogits, name("top8_ids"), name("top8_values"), rows);
  }

  void check_tail(GoldenFile& file, const std::string& tensor,
                  const std::vector<std::vector<float>>& rows, int64_t count) {
    const TensorView* expected =
        file.tensor(tensor, DType::f32, {count, session_.config().vocab_size});
    if (expected == nullptr) return;
    std::vector<float> found;
    for (auto row = rows.end() - count; row != rows.end(); ++row) {
      found.insert(found.end(), row->begin(), row->end());
    }
    session_.report().check(kRunLogits, relative_l2(found, floats(*expected)), tensor);
  }

  void check_layers() {
    GoldenFile* file = session_.golden().file("layers");
    if (file == nullptr) return;
    const model::ModelConfig& config = session_.config();
    for (const LayerTensor& entry : file->layer_tensors(prompt_.name + ".", "out")) {
      const TensorView* expected = file->tensor(
          entry.name, DType::bf16, {prompt_.length(), config.hc_mult, config.hidden_size});
      if (expected == nullptr || !session_.has_layer(entry.layer)) continue;
      session_.report().check(
          kRunLayers, relative_l2(recorder_.layers[entry.layer], floats(*expected)), entry.name);
    }
  }

  void check_selections() {
    GoldenFile* file = session_.golden().file("selection");
    if (file == nullptr) return;
    const int64_t n = prompt_.length();
    Report& report = session_.report();
    for (LayerId layer = 0; layer < session_.layer_count(); ++layer) {
      const model::LayerPlan& plan = session_.model().plan.layers[static_cast<size_t>(layer)];
      const std::string base = name("layer" + std::to_string(layer));
      if (plan.scores() && n / plan.ratio > 0) check_selected(*file, plan, base);
      const Routing& routing = recorder_.routing[layer];
      const std::vector<int64_t> shape = {n, session_.config().num_experts_per_tok};
      const TensorView* experts = file->tensor(base + ".experts", DType::i32, shape);
      if (experts == nullptr) continue;
      const Lists expected{integers(*experts), shape[1]};
      check_share(report, kRunExperts, base + ".experts", routing.experts, expected);
      const TensorView* weights = file->tensor(base + ".expert_weights", DType::f32, shape);
      if (weights != nullptr) check_weights(base, routing, expected, floats(*weights));
    }
  }

  void check_selected(GoldenFile& file, const model::LayerPlan& plan, const std::string& base) {
    const int64_t n = prompt_.length(), columns = n / plan.ratio;
    const int64_t k = std::min(session_.config().index_topk, columns);
    const TensorView* score = file.tensor(base + ".score", DType::f32, {n, columns});
    if (score != nullptr) {
      check_scores(session_.report(), kRunScores, base + ".score",
                   score_rows(recorder_.scores[plan.id], n, columns), floats(*score));
    }
    const TensorView* topk = file.tensor(base + ".topk", DType::i32, {n, k});
    if (topk != nullptr) {
      check_share(session_.report(), kRunTopk, base + ".topk", recorder_.topk[plan.id],
                  Lists{integers(*topk), k});
    }
    if (!plan.makes_candidates) return;
    const TensorView* pool = file.tensor(name("candidates"), DType::boolean, {n, columns});
    if (pool == nullptr) return;
    const std::vector<int64_t> expected = integers(*pool);
    const double different = count_different(
        pool_rows(recorder_.pools[plan.id], recorder_.pool_words[plan.id], n, columns), expected);
    const auto size = std::count(expected.begin(), expected.end(), 1);
    session_.report().check(kRunCandidates, different / static_cast<double>(std::max<int64_t>(size, 1)),
                            name("candidates"));
  }

  /// Weights of the rows that chose the same experts in the same order.
  void check_weights(const std::string& base, const Routing& routing, const Lists& expected,
                     const std::vector<float>& weights) {
    if (routing.experts.entries.size() != expected.entries.size()) return;  // reported above
    std::vector<float> found, wanted;
    const auto width = static_cast<size_t>(expected.width);
    for (size_t begin = 0; begin < weights.size(); begin += width) {
      const auto at = static_cast<std::ptrdiff_t>(begin);
      const auto end = at + expected.width;
      if (!std::equal(expected.entries.begin() + at, expected.entries.begin() + end,
                      routing.experts.entries.begin() + at)) {
        continue;
      }
      found.insert(found.end(), routing.weights.begin() + at, routing.weights.begin() + end);
      wanted.insert(wanted.end(), weights.begin() + at, weights.begin() + end);
    }
    session_.report().check(kRunExpertWeights, relative_l2(found, wanted), base + ".expert_weights");
  }

  void check_main_hidden(const SequenceRunner::Output& output) {
    GoldenFile* file = session_.golden().file("caches");
    if (file == nullptr || output.main_hidden.empty()) return;
    const std::vector<Bf16>& last = output.main_hidden.back();
    const TensorView* expected =
        file->tensor(name("main_hidden_last"), DType::bf16, {std::ssize(last)});
    if (expected == nullptr) return;
    session_.report().check(
        kRunMainHidden, relative_l2(widen(last.data(), std::ssize(last)), floats(*expected)),
        name("main_hidden_last"));
  }

  Session& session_;
  const Prompt& prompt_;
  Recorder recorder_;
};

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
  const TensorView* last = file.tensor(base + "last_logits", DType::f32, {session.config().vocab_size});
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
  if (session.prompts().empty()) return session.report().skip("run", "the folder has no manifest prompts");
  GoldenFile* logits = session.golden().file("logits");
  if (logits == nullptr) session.report().skip("run.logits", "logits.safetensors is absent");
  if (session.golden().file("caches") == nullptr) {
    session.report().skip("run.caches", "caches.safetensors is absent");
  }
  for (const Prompt& prompt : session.prompts()) {
    session.progress("run", prompt.name);
    PromptRun(session, prompt).run();
    if (logits == nullptr) continue;
    for (Behaviour behaviour : kBehaviours) check_greedy(session, *logits, prompt, behaviour);
  }
}

}  // namespace cedar::engine::verify
