// Single decode steps on recorded tokens after a prefill, in both behaviours. This is where a wrong owner of
// index keys shows.

#include <algorithm>
#include <limits>
#include <map>

#include "engine/verify/checks.h"
#include "engine/verify/guided_run.h"
#include "engine/verify/runs.h"
#include "engine/verify/selection.h"

namespace cedar::engine::verify {
namespace {

/// What a step recorded of one scoring layer.
struct Recorded {
  const model::LayerPlan* plan = nullptr;
  int64_t columns = 0;
  const TensorView* score = nullptr;
  const TensorView* topk = nullptr;
  Lists list() const { return {integers(*topk), topk->shape[0]}; }
  Scores scores() const { return {score->as<float>().data(), columns}; }
};

using Pools = std::vector<std::vector<uint32_t>>;

class DecodeRun {
 public:
  DecodeRun(Session& session, GoldenFile& file, const Prompt& prompt, Behaviour behaviour)
      : session_(session),
        file_(file),
        prompt_(prompt),
        behaviour_(behaviour),
        base_(prompt.name + "." + to_string(behaviour) + ".") {}

  void run() {
    const int64_t steps = file_.steps(base_);
    auto run = GuidedRun::open(session_, behaviour_, prompt_.length() + steps);
    if (!run) return session_.report().fail(kDecodeLogits, base_, run.error());
    const auto prefill = run->step(prompt_.tokens, prefill_guide(session_, prompt_));
    if (!prefill) return session_.report().fail(kDecodeLogits, base_ + "prefill", prefill.error());
    for (int64_t step = 0; step < steps; ++step) {
      name_ = base_ + "step" + std::to_string(step) + ".";
      const TensorView* token = file_.tensor(name_ + "token_in", DType::i32, {1});
      if (token == nullptr) {
        return session_.report().fail(kDecodeLogits, name_ + "token_in", "there is no such tensor");
      }
      read_step(prompt_.length() + step + 1);
      const auto output = run->step({token->as<int32_t>()[0]}, guide_);
      if (!output) return session_.report().fail(kDecodeLogits, name_, output.error());
      check_step(output->logits.back(), run->recorder());
    }
    for (const auto& [layer, difference] : pool_differences_) {
      check_share(session_.report(), kDecodeCandidates,
                  base_ + "layer" + std::to_string(layer) + ".candidates", difference);
    }
  }

 private:
  /// Collects the step's recorded choices, checks them on their recorded scores, and makes the guide.
  void read_step(int64_t tokens) {
    guide_ = {};
    recorded_.clear();
    Pools pools = {{}};
    for (const model::LayerPlan& plan : session_.model().plan.layers) {
      if (!plan.scores() || tokens / plan.ratio == 0) continue;
      Recorded r;
      r.plan = &plan;
      r.columns = tokens / plan.ratio;
      const std::string base = name_ + "layer" + std::to_string(plan.id);
      r.score = file_.tensor(base + ".score", DType::f32, {r.columns});
      r.topk = file_.tensor(base + ".topk", DType::i32,
                            {std::min(session_.config().index_topk, r.columns)});
      recorded_.push_back(r);
      if (r.topk != nullptr) guide_.lists[plan.id] = r.list();
      if (plan.makes_candidates && r.score != nullptr) {
        pools = allowed_pools(session_.config(), r.scores().values, r.columns);
        guide_.pools[plan.id] = pools.front();
      }
      if (r.topk == nullptr || r.score == nullptr) continue;
      if (plan.uses_candidates && pools.front().empty()) continue;
      check_on_scores(base + ".topk", r, plan.uses_candidates ? pools : Pools{{}});
    }
  }

  /// The pool that the reference read is not recorded: it is one of `pools`, and guides the step.
  void check_on_scores(const std::string& what, const Recorded& r, const Pools& pools) {
    Lists closest;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const std::vector<uint32_t>& pool : pools) {
      auto found = topk_of(session_.ctx(), r.scores().values, 1, r.columns, r.list().width, pool);
      if (!found) return session_.report().fail(kDecodeTopkOnScores, what, found.error());
      const ListDifference d = compare_lists(*found, r.list(), r.scores(), 0);
      if (d.unexcused_entries >= least) continue;
      least = d.unexcused_entries;
      closest = std::move(*found);
      if (r.plan->uses_candidates) {
        guide_.pools[*session_.config().candidate_source_layer_id] = pool;
      }
    }
    check_lists(session_.report(), kDecodeTopkOnScores, what, closest, r.list(), r.scores(), 0);
  }

  void check_step(const std::vector<float>& logits, Recorder& recorder) {
    const model::ModelConfig& config = session_.config();
    const TensorView* expected = file_.tensor(name_ + "logits", DType::f32, {config.vocab_size});
    if (expected != nullptr) {
      session_.report().check(kDecodeLogits, relative_l2(logits, floats(*expected)),
                              name_ + "logits");
    }
    for (const LayerTensor& entry : file_.layer_tensors(name_, "out")) {
      if (!session_.has_layer(entry.layer)) continue;
      const TensorView* out =
          file_.tensor(entry.name, DType::bf16, {config.hc_mult, config.hidden_size});
      if (out == nullptr) continue;
      session_.report().check(kDecodeLayers,
                              relative_l2(recorder.layers[entry.layer], floats(*out)), entry.name);
    }
    for (const Recorded& r : recorded_) check_selected(r, recorder);
  }

  void check_selected(const Recorded& r, Recorder& recorder) {
    const LayerId layer = r.plan->id;
    const std::string base = name_ + "layer" + std::to_string(layer);
    const ScoreTable& scores = recorder.scores[layer];
    Report& report = session_.report();
    if (r.score != nullptr) {
      check_scores(report, kDecodeScores, base + ".score", score_rows(scores, 1, r.columns),
                   floats(*r.score));
    }
    if (r.topk != nullptr) {
      check_share(report, kDecodeTopk, base + ".topk", recorder.topk[layer], r.list(),
                  scores.view());
    }
    const auto pool = guide_.pools.find(layer);
    if (!r.plan->makes_candidates || pool == guide_.pools.end()) return;
    const ListDifference d =
        compare_pools(pool_rows(recorder.pools[layer], recorder.pool_words[layer], 1, r.columns),
                      pool_rows(pool->second, std::ssize(pool->second), 1, r.columns), r.columns,
                      session_.config().candidate_block_size, scores.view());
    ListDifference& sum = pool_differences_[layer];
    sum.entries += d.entries;
    sum.unexcused_entries += d.unexcused_entries;
  }

  Session& session_;
  GoldenFile& file_;
  const Prompt& prompt_;
  Behaviour behaviour_;
  std::string base_;  // "p120.released."
  std::string name_;  // "p120.released.step1."
  // Over all steps: the few blocks of a single row are too few for a share.
  std::map<LayerId, ListDifference> pool_differences_;
  std::vector<Recorded> recorded_;
  Guide guide_;
};

}  // namespace

void check_decode(Session& session) {
  GoldenFile* file = session.golden().file("decode");
  if (file == nullptr) return session.report().skip("decode", "decode.safetensors is absent");
  for (const Prompt& prompt : session.prompts()) {
    for (Behaviour behaviour : kBehaviours) {
      if (file->steps(prompt.name + "." + to_string(behaviour) + ".") == 0) continue;
      session.progress("decode", prompt.name + " " + to_string(behaviour));
      DecodeRun(session, *file, prompt, behaviour).run();
    }
  }
}

}  // namespace cedar::engine::verify
