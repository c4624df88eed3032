#include "engine/verify/guided_run.h"

#include <algorithm>
#include <string>

#include "engine/request_checks.h"
#include "engine/verify/selection.h"

namespace cedar::engine::verify {
namespace {

void pin(kernels::KernelContext& ctx, const Guide& guide, const StepBatch& batch,
         SharedAttention& shared) {
  for (const auto& [layer, lists] : guide.lists) {
    const std::vector<int32_t> indices(lists.entries.begin(), lists.entries.end());
    shared.pin(layer, SharedTopk{upload(ctx, indices), lists.width});
  }
  for (const auto& [layer, words] : guide.pools) {
    shared.pin(layer, SharedCandidates{upload(ctx, words), std::ssize(words) / batch.rows});
  }
}

}  // namespace

Result<GuidedRun> GuidedRun::open(Session& session, Behaviour behaviour, int64_t max_tokens) {
  CEDAR_TRY(OpenSequence sequence, OpenSequence::open(session.runner(behaviour), max_tokens));
  GuidedRun run(session, std::move(sequence));
  const model::ModelConfig& config = session.config();
  run.recorder_.keep_layers(config.hc_mult * config.hidden_size);
  return run;
}

Result<GuidedStep> GuidedRun::step(const std::vector<TokenId>& tokens, const Guide& guide) {
  SequenceRunner& runner = sequence_.runner();
  runner.runtime().begin_step();
  recorder_.clear();
  kernels::KernelContext& ctx = runner.runtime().context();
  const LoadedModel& model = session_.model();
  const model::ModelConfig& config = model.config;
  const auto start = std::ssize(tokens_);
  const auto rows = std::ssize(tokens);
  CEDAR_CHECK_OK(check_prompt(config, tokens));
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  const StepBatch batch =
      make_step_batch(ctx, model, store(), {make_sequence(model, slot(), tokens_, start, rows)});
  Forward forward(model, store(), runner.engram(), runner.options().numeric, ctx, &recorder_);
  SharedAttention shared;
  pin(ctx, guide, batch, shared);
  CEDAR_TRY(StreamState state, forward.embed(batch));
  const auto columns = std::ssize(config.dspark_target_layer_ids) * config.hidden_size;
  Bf16* hidden = model.drafter ? ctx.arena->allocate<Bf16>(rows * columns) : nullptr;
  CEDAR_CHECK_OK(forward.run_layers(0, session_.layer_count(), batch, shared, state, hidden));
  std::vector<int32_t> all;
  for (int32_t row = 0; row < rows; ++row) all.push_back(row);
  CEDAR_TRY(const float* device_logits, forward.logits(state, upload(ctx, all), rows));
  const std::vector<float> logits = output(ctx, device_logits, rows * config.vocab_size);
  GuidedStep out;
  for (int64_t row = 0; row < rows; ++row) {
    const float* begin = logits.data() + row * config.vocab_size;
    out.logits.emplace_back(begin, begin + config.vocab_size);
  }
  if (hidden != nullptr) out.last_main_hidden = output(ctx, hidden + (rows - 1) * columns, columns);
  return out;
}

Guide prefill_guide(Session& session, const Prompt& prompt) {
  Guide guide;
  GoldenFile* file = session.golden().file("selection");
  if (file == nullptr) return guide;
  const int64_t rows = prompt.length();
  for (const model::LayerPlan& plan : session.model().plan.layers) {
    if (!plan.scores() || rows / plan.ratio == 0) continue;
    const int64_t columns = rows / plan.ratio;
    const int64_t k = std::min(session.config().index_topk, columns);
    const std::string base = prompt.name + ".layer" + std::to_string(plan.id);
    const TensorView* list = file->tensor(base + ".topk", DType::i32, {rows, k});
    if (list != nullptr) guide.lists[plan.id] = Lists{integers(*list), k};
    if (!plan.makes_candidates) continue;
    const TensorView* pool =
        file->tensor(prompt.name + ".candidates", DType::boolean, {rows, columns});
    if (pool != nullptr) guide.pools[plan.id] = pool_words(integers(*pool), columns);
  }
  return guide;
}

}  // namespace cedar::engine::verify
