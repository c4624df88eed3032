// The drafter, first on recorded hidden states and rings, then behind a whole run of the backbone.

#include <algorithm>

#include "engine/request_checks.h"
#include "engine/verify/cache_rows.h"
#include "engine/verify/checks.h"
#include "engine/verify/runs.h"
#include "kernels/quantize.h"

namespace cedar::engine::verify {
namespace {

class DraftRun {
 public:
  DraftRun(Session& session, GoldenFile& file, const Prompt& prompt)
      : session_(session),
        file_(file),
        prompt_(prompt),
        base_(prompt.name + "."),
        tokens_(prompt.tokens),
        steps_(file.steps(base_)) {}

  void on_recorded_states() {
    auto sequence = OpenSequence::open(session_.runner(), prompt_.length() + steps_);
    if (!sequence) return failed(kDraftIds, base_, sequence.error());
    SequenceRunner& runner = sequence->runner();
    runner.runtime().begin_step();
    Drafter drafter(session_.model(), runner.store(), session_.ctx());
    if (Status filled = fill_rings(drafter, sequence->slot()); !filled) {
      return failed(kDraftWindow, base_ + "window_kv_prefill", filled.error());
    }
    for (int64_t step = 0; step < steps_; ++step) {
      if (Status status = read_step(step); !status) return failed(kDraftIds, name_, status.error());
      const TensorView* hidden =
          file_.tensor(name_ + "main_hidden", DType::bf16, {hidden_columns()});
      const TensorView* ids = draft_ids();
      if (hidden == nullptr || ids == nullptr) continue;
      runner.runtime().begin_step();
      if (Status status = drafter.observe(batch_of(sequence->slot(), std::ssize(tokens_) - 1, 1),
                                          input<Bf16>(session_.ctx(), *hidden));
          !status) {
        return failed(kDraftIds, name_, status.error());
      }
      DraftRequest request;
      request.slot = sequence->slot();
      request.position = std::ssize(tokens_) - 1;
      request.next = ids->as<int32_t>()[0];
      const auto drafts = drafter.propose({request});
      if (!drafts) return failed(kDraftIds, name_, drafts.error());
      check_ids(kDraftIds, request.next, drafts->front(), *ids);
      check_values(drafts->front());
    }
  }

  void behind_the_backbone() {
    tokens_ = prompt_.tokens;
    auto sequence = OpenSequence::open(session_.runner(), prompt_.length() + steps_);
    if (!sequence) return failed(kDraftRunIds, base_, sequence.error());
    auto output = sequence->run(prompt_.tokens);
    if (!output) return failed(kDraftRunIds, base_, output.error());
    check_prefill(*output, sequence->slot());
    for (int64_t step = 0; step < steps_; ++step) {
      if (Status status = read_step(step); !status) {
        return failed(kDraftRunIds, name_, status.error());
      }
      output = sequence->run({tokens_.back()});
      if (!output) return failed(kDraftRunIds, name_, output.error());
      check_hidden(name_ + "main_hidden", output->main_hidden, {hidden_columns()});
      const TokenId next = best_token(output->logits.back());
      const auto draft = sequence->runner().draft(sequence->slot(), next);
      if (!draft) return failed(kDraftRunIds, name_, draft.error());
      if (const TensorView* ids = draft_ids()) check_ids(kDraftRunIds, next, *draft, *ids);
    }
  }

 private:
  const model::ModelConfig& config() const { return session_.config(); }
  int64_t hidden_columns() const {
    return std::ssize(config().dspark_target_layer_ids) * config().hidden_size;
  }
  int64_t window() const { return std::min(prompt_.length(), config().sliding_window); }
  void failed(const Kind& kind, const std::string& what, const Error& error) {
    session_.report().fail(kind, what, error);
  }

  StepBatch batch_of(SequenceSlot slot, Position start, int64_t rows) {
    return make_step_batch(session_.ctx(), session_.model(), session_.runner().store(),
                           {make_sequence(session_.model(), slot, tokens_, start, rows)});
  }

  const TensorView* ring_tensor(size_t stage) {
    return file_.tensor(base_ + "stage" + std::to_string(stage) + ".window_kv_prefill", DType::bf16,
                        {window(), config().head_dim});
  }

  /// The context rows of the prompt: computed where its hidden states are recorded, else the recorded rows.
  /// Quantising a dequantised row again gives its codes back (spec/model.md 2.3).
  Status fill_rings(Drafter& drafter, SequenceSlot slot) {
    const TensorView* hidden =
        file_.tensor(base_ + "main_hidden", DType::bf16, {prompt_.length(), hidden_columns()});
    const size_t stages = session_.model().drafter->stages.size();
    SequenceStore& store = session_.runner().store();
    if (hidden != nullptr) {
      CEDAR_CHECK_OK(drafter.observe(batch_of(slot, 0, prompt_.length()),
                                     input<Bf16>(session_.ctx(), *hidden)));
      for (size_t stage = 0; stage < stages; ++stage) {
        const TensorView* expected = ring_tensor(stage);
        if (expected != nullptr) check_ring(kDraftWindow, stage, slot, *expected);
      }
      return {};
    }
    for (size_t stage = 0; stage < stages; ++stage) {
      const TensorView* rows = ring_tensor(stage);
      if (rows == nullptr) {
        return make_error(Errc::not_found, "neither hidden states nor ring rows are recorded");
      }
      const kernels::WindowRings rings = store.extra_rings(static_cast<int64_t>(stage));
      std::vector<uint8_t> packed(static_cast<size_t>(window() * rings.row_bytes));
      for (int64_t i = 0; i < window(); ++i) {
        kernels::quantize_row(kernels::RowFormat::q8,
                              rows->as<Bf16>().data() + i * config().head_dim, config().head_dim,
                              packed.data() + i * rings.row_bytes);
      }
      const kernels::KernelContext& ctx = session_.ctx();
      CEDAR_CHECK_OK(copy_to_device(ctx.device, rings.row(slot.value, 0), packed.data(),
                                    std::ssize(packed), ctx.cuda_stream));
    }
    return {};
  }

  void check_ring(const Kind& kind, size_t stage, SequenceSlot slot, const TensorView& expected) {
    const kernels::WindowRings rings =
        session_.runner().store().extra_rings(static_cast<int64_t>(stage));
    session_.report().check(
        kind, relative_l2(ring_rows(session_, rings, slot, window()), floats(expected)),
        base_ + "stage" + std::to_string(stage) + ".window_kv_prefill");
  }

  /// Appends the step's token and sets its name.
  Status read_step(int64_t step) {
    name_ = base_ + "step" + std::to_string(step) + ".";
    const TensorView* token = file_.tensor(name_ + "token_in", DType::i32, {1});
    if (token == nullptr) return make_error(Errc::not_found, name_ + "token_in");
    tokens_.push_back(token->as<int32_t>()[0]);
    return check_prompt(config(), tokens_);
  }

  const TensorView* draft_ids() {
    return file_.tensor(name_ + "draft_ids", DType::i32, {config().dspark_block_size + 1});
  }

  void check_ids(const Kind& kind, TokenId next, const Draft& draft, const TensorView& expected) {
    std::vector<TokenId> found = {next};
    found.insert(found.end(), draft.tokens.begin(), draft.tokens.end());
    session_.report().check(kind, count_different(found, integers(expected)), name_ + "draft_ids");
  }

  void check_values(const Draft& draft) {
    check_top_values(session_, file_, kDraftLogits, name_ + "draft_top8_ids",
                     name_ + "draft_logits_top8", draft.logits);
    const TensorView* all = file_.tensor(name_ + "draft_logits", DType::f32,
                                         {config().dspark_block_size, config().vocab_size});
    if (all != nullptr) {
      std::vector<float> found;
      for (const auto& row : draft.logits) found.insert(found.end(), row.begin(), row.end());
      session_.report().check(kDraftLogits, relative_l2(found, floats(*all)),
                              name_ + "draft_logits");
    }
    const TensorView* confidence =
        file_.tensor(name_ + "confidence", DType::f32, {config().dspark_block_size});
    if (confidence != nullptr) {
      session_.report().check(kDraftConfidence, relative_l2(draft.confidence, floats(*confidence)),
                              name_ + "confidence");
    }
  }

  void check_prefill(const SequenceRunner::Output& output, SequenceSlot slot) {
    check_hidden(base_ + "main_hidden", output.main_hidden, {prompt_.length(), hidden_columns()});
    for (size_t stage = 0; stage < session_.model().drafter->stages.size(); ++stage) {
      const TensorView* expected = ring_tensor(stage);
      if (expected != nullptr) check_ring(kDraftRunWindow, stage, slot, *expected);
    }
  }

  void check_hidden(const std::string& name, const std::vector<std::vector<Bf16>>& rows,
                    const std::vector<int64_t>& shape) {
    const TensorView* expected = file_.tensor(name, DType::bf16, shape);
    if (expected == nullptr) return;
    std::vector<float> found;
    for (const std::vector<Bf16>& row : rows) {
      const std::vector<float> wide = widen(row.data(), std::ssize(row));
      found.insert(found.end(), wide.begin(), wide.end());
    }
    session_.report().check(kDraftRunHidden, relative_l2(found, floats(*expected)), name);
  }

  Session& session_;
  GoldenFile& file_;
  const Prompt& prompt_;
  std::string base_;             // "p37."
  std::string name_;             // "p37.step2."
  std::vector<TokenId> tokens_;  // fed so far
  int64_t steps_;
};

}  // namespace

void check_drafts(Session& session) {
  GoldenFile* file = session.golden().file("dspark");
  if (file == nullptr) return session.report().skip("dspark", "dspark.safetensors is absent");
  if (!session.model().drafter) {
    return session.report().fail(kDraftIds, "dspark.safetensors", "the checkpoint has no drafter");
  }
  for (const Prompt& prompt : session.prompts()) {
    if (file->steps(prompt.name + ".") == 0) continue;
    session.progress("dspark", prompt.name);
    DraftRun run(session, *file, prompt);
    run.on_recorded_states();
    run.behind_the_backbone();
  }
}

}  // namespace cedar::engine::verify
