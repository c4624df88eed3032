// The guided whole run of every prompt (guided_run.h): what each layer chose, its output, the caches behind it.

#include <algorithm>

#include "core/units.h"
#include "engine/verify/cache_rows.h"
#include "engine/verify/checks.h"
#include "engine/verify/guided_run.h"
#include "engine/verify/runs.h"
#include "engine/verify/selection.h"

namespace cedar::engine::verify {
namespace {

constexpr CacheKinds kGuidedCaches = {kGuidedWindow, kGuidedMainKv, kGuidedIndexKeys,
                                      kGuidedOpenGroup};

class PromptRun {
 public:
  PromptRun(Session& session, const Prompt& prompt) : session_(session), prompt_(prompt) {}

  void run() {
    auto run = GuidedRun::open(session_, Behaviour::published, prompt_.length());
    if (!run) return session_.report().fail(kGuidedLogits, prompt_.name, run.error());
    guide_ = prefill_guide(session_, prompt_);
    const auto step = run->step(prompt_.tokens, guide_);
    if (!step) return session_.report().fail(kGuidedLogits, prompt_.name, step.error());
    recorder_ = &run->recorder();
    check_step(*step);
    check_layers();
    if (GoldenFile* selection = session_.golden().file("selection")) check_selections(*selection);
    check_caches(session_, run->store(), run->slot(), prompt_, kGuidedCaches);
  }

 private:
  std::string name(const std::string& suffix) const { return prompt_.name + "." + suffix; }

  void check_step(const GuidedStep& step) {
    GoldenFile* logits = session_.golden().file("logits");
    const TensorView* last = logits == nullptr ? nullptr
                                               : logits->tensor(name("last_logits"), DType::f32,
                                                                {session_.config().vocab_size});
    if (last != nullptr) {
      session_.report().check(kGuidedLogits, relative_l2(step.logits.back(), floats(*last)),
                              name("last_logits"));
    }
    GoldenFile* caches = session_.golden().file("caches");
    if (caches == nullptr || step.last_main_hidden.empty()) return;
    const std::vector<Bf16>& hidden = step.last_main_hidden;
    const TensorView* expected =
        caches->tensor(name("main_hidden_last"), DType::bf16, {std::ssize(hidden)});
    if (expected == nullptr) return;
    session_.report().check(
        kGuidedMainHidden, relative_l2(widen(hidden.data(), std::ssize(hidden)), floats(*expected)),
        name("main_hidden_last"));
  }

  void check_layers() {
    GoldenFile* file = session_.golden().file("layers");
    if (file == nullptr) return;
    const model::ModelConfig& config = session_.config();
    for (const LayerTensor& entry : file->layer_tensors(prompt_.name + ".", "out")) {
      if (!session_.has_layer(entry.layer)) continue;
      const TensorView* expected = file->tensor(
          entry.name, DType::bf16, {prompt_.length(), config.hc_mult, config.hidden_size});
      if (expected == nullptr) continue;
      session_.report().check(kGuidedLayers,
                              relative_l2(recorder_->layers[entry.layer], floats(*expected)),
                              entry.name);
    }
  }

  void check_selections(GoldenFile& file) {
    for (const model::LayerPlan& plan : session_.model().plan.layers) {
      const std::string base = name("layer" + std::to_string(plan.id));
      if (plan.scores() && prompt_.length() / plan.ratio > 0) check_selected(file, plan, base);
      check_experts(file, plan.id, base);
    }
  }

  void check_selected(GoldenFile& file, const model::LayerPlan& plan, const std::string& base) {
    const int64_t n = prompt_.length(), columns = n / plan.ratio;
    const ScoreTable& scores = recorder_->scores[plan.id];
    Report& report = session_.report();
    const TensorView* expected = file.tensor(base + ".score", DType::f32, {n, columns});
    if (expected != nullptr) {
      check_scores(report, kGuidedScores, base + ".score", score_rows(scores, n, columns),
                   floats(*expected));
    }
    const auto list = guide_.lists.find(plan.id);
    if (list != guide_.lists.end()) {
      check_share(report, kGuidedTopk, base + ".topk", recorder_->topk[plan.id], list->second,
                  scores.view());
    }
    const auto pool = guide_.pools.find(plan.id);
    if (pool == guide_.pools.end()) return;
    const int64_t words = ceil_div(columns, 32);
    check_pool_share(
        report, kGuidedCandidates, name("candidates"),
        pool_rows(recorder_->pools[plan.id], recorder_->pool_words[plan.id], n, columns),
        pool_rows(pool->second, words, n, columns), columns, session_.config().candidate_block_size,
        scores.view());
  }

  void check_experts(GoldenFile& file, LayerId layer, const std::string& base) {
    const std::vector<int64_t> shape = {prompt_.length(), session_.config().num_experts_per_tok};
    const TensorView* experts = file.tensor(base + ".experts", DType::i32, shape);
    if (experts == nullptr) return;
    const Routing& routing = recorder_->routing[layer];
    const Lists expected{integers(*experts), shape[1]};
    check_share(session_.report(), kGuidedExperts, base + ".experts", routing.experts, expected,
                {});
    const TensorView* weights = file.tensor(base + ".expert_weights", DType::f32, shape);
    if (weights != nullptr) check_weights(base, routing, expected, floats(*weights));
  }

  /// Weights of the rows that chose the same experts in the same order.
  void check_weights(const std::string& base, const Routing& routing, const Lists& expected,
                     const std::vector<float>& weights) {
    if (routing.experts.entries.size() != expected.entries.size()) return;  // reported above
    std::vector<float> found, wanted;
    for (int64_t at = 0; at < std::ssize(weights); at += expected.width) {
      const int64_t end = at + expected.width;
      if (!std::equal(expected.entries.begin() + at, expected.entries.begin() + end,
                      routing.experts.entries.begin() + at)) {
        continue;
      }
      found.insert(found.end(), routing.weights.begin() + at, routing.weights.begin() + end);
      wanted.insert(wanted.end(), weights.begin() + at, weights.begin() + end);
    }
    session_.report().check(kGuidedExpertWeights, relative_l2(found, wanted),
                            base + ".expert_weights");
  }

  Session& session_;
  const Prompt& prompt_;
  Guide guide_;
  Recorder* recorder_ = nullptr;
};

}  // namespace

void check_guided(Session& session) {
  for (const char* stem : {"layers", "selection", "caches"}) {
    if (session.golden().file(stem) != nullptr) continue;
    session.report().skip(std::string("guided (") + stem + ")",
                          std::string(stem) + ".safetensors is absent");
  }
  for (const Prompt& prompt : session.prompts()) {
    session.progress("guided", prompt.name);
    PromptRun(session, prompt).run();
  }
}

}  // namespace cedar::engine::verify
