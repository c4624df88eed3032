// Single decode steps on recorded tokens after a prefill, in both behaviours. This is where a wrong owner of
// index keys shows.

#include <algorithm>

#include "engine/verify/checks.h"
#include "engine/verify/runs.h"
#include "engine/verify/selection.h"

namespace cedar::engine::verify {
namespace {

class DecodeRun {
 public:
  DecodeRun(Session& session, GoldenFile& file, const Prompt& prompt, Behaviour behaviour)
      : session_(session), file_(file), prompt_(prompt), behaviour_(behaviour),
        base_(prompt.name + "." + to_string(behaviour) + ".") {}

  void run() {
    const int64_t steps = file_.steps(base_);
    if (steps == 0) return;
    const model::ModelConfig& config = session_.config();
    auto sequence =
        OpenSequence::open(session_.runner(behaviour_), prompt_.length() + steps);
    if (!sequence) return session_.report().fail(kDecodeLogits, base_, sequence.error());
    recorder_.keep_layers(config.hc_mult * config.hidden_size);
    if (auto prefill = sequence->run(prompt_.tokens); !prefill) {
      return session_.report().fail(kDecodeLogits, base_ + "prefill", prefill.error());
    }
    for (int64_t step = 0; step < steps; ++step) {
      name_ = base_ + "step" + std::to_string(step) + ".";
      const TensorView* token = file_.tensor(name_ + "token_in", DType::i32, {1});
      if (token == nullptr) {
        return session_.report().fail(kDecodeLogits, name_ + "token_in", "there is no such tensor");
      }
      recorder_.clear();
      auto output = sequence->run({token->as<int32_t>()[0]}, false, &recorder_);
      if (!output) return session_.report().fail(kDecodeLogits, name_, output.error());
      check_step(output->logits.back(), prompt_.length() + step + 1);
    }
  }

 private:
  void check_step(const std::vector<float>& logits, int64_t tokens) {
    const model::ModelConfig& config = session_.config();
    const TensorView* expected = file_.tensor(name_ + "logits", DType::f32, {config.vocab_size});
    if (expected != nullptr) {
      session_.report().check(kDecodeLogits, relative_l2(logits, floats(*expected)),
                              name_ + "logits");
    }
    for (const LayerTensor& entry : file_.layer_tensors(name_, "out")) {
      const TensorView* out =
          file_.tensor(entry.name, DType::bf16, {config.hc_mult, config.hidden_size});
      if (out == nullptr || !session_.has_layer(entry.layer)) continue;
      session_.report().check(kDecodeLayers,
                              relative_l2(recorder_.layers[entry.layer], floats(*out)), entry.name);
    }
    std::vector<uint32_t> pool;
    for (LayerId layer = 0; layer < session_.layer_count(); ++layer) {
      const model::LayerPlan& plan = session_.model().plan.layers[static_cast<size_t>(layer)];
      if (plan.scores() && tokens / plan.ratio > 0) check_selected(plan, tokens / plan.ratio, pool);
    }
  }

  /// `pool` is made from the recorded scores of its owner and read by later layers.
  void check_selected(const model::LayerPlan& plan, int64_t columns, std::vector<uint32_t>& pool) {
    const std::string base = name_ + "layer" + std::to_string(plan.id);
    const int64_t k = std::min(session_.config().index_topk, columns);
    Report& report = session_.report();
    const TensorView* score = file_.tensor(base + ".score", DType::f32, {columns});
    const TensorView* topk = file_.tensor(base + ".topk", DType::i32, {k});
    if (score != nullptr) {
      check_scores(report, kDecodeScores, base + ".score",
                   score_rows(recorder_.scores[plan.id], 1, columns), floats(*score));
    }
    if (topk == nullptr) return;
    const Lists expected{integers(*topk), k};
    check_share(report, kDecodeTopk, base + ".topk", recorder_.topk[plan.id], expected);
    if (score == nullptr) return;
    const float* scores = score->as<float>().data();
    kernels::KernelContext& ctx = session_.ctx();
    if (plan.makes_candidates) {
      auto made = pool_of(ctx, session_.config(), scores, {columns}, columns);
      if (!made) return report.fail(kDecodeTopkOnScores, base, made.error());
      pool = std::move(*made);
    }
    if (plan.uses_candidates && pool.empty()) return;
    const auto found = topk_of(ctx, scores, 1, columns, k,
                               plan.uses_candidates ? pool : std::vector<uint32_t>{});
    if (!found) return report.fail(kDecodeTopkOnScores, base, found.error());
    check_lists(report, kDecodeTopkOnScores, base + ".topk", *found, expected,
                Scores{scores, columns}, 0);
  }

  Session& session_;
  GoldenFile& file_;
  const Prompt& prompt_;
  Behaviour behaviour_;
  std::string base_;  // "p120.released."
  std::string name_;  // "p120.released.step1."
  Recorder recorder_;
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
