#include "engine/sequence_runner.h"

#include <string>

#include "engine/request_checks.h"
#include "engine/upload.h"

namespace cedar::engine {

SequenceRunner::SequenceRunner(std::shared_ptr<const LoadedModel> model,
                               const EngineOptions& options, SequenceStore store)
    : model_(std::move(model)),
      engram_(local_engram_source(model_)),
      options_(options),
      runtime_(options),
      store_(std::move(store)) {}

Result<std::unique_ptr<SequenceRunner>> SequenceRunner::create(
    std::shared_ptr<const LoadedModel> model, const EngineOptions& options) {
  CEDAR_TRY(const EngineOptions complete, complete_options(options, *model));
  const int64_t stages = model->drafter ? static_cast<int64_t>(model->drafter->stages.size()) : 0;
  CEDAR_TRY(SequenceStore store,
            SequenceStore::create(*model, 0, static_cast<LayerId>(model->plan.layers.size()),
                                  stages, complete.kv_pool_blocks, complete.max_sequences));
  return std::unique_ptr<SequenceRunner>(
      new SequenceRunner(std::move(model), complete, std::move(store)));
}

Result<SequenceSlot> SequenceRunner::open(int64_t max_tokens) {
  const int64_t blocks = store_.blocks_for(max_tokens);
  CEDAR_CHECK_OK(check_capacity(options_, store_, max_tokens, blocks));
  CEDAR_TRY(const SequenceSlot slot, store_.acquire(blocks));
  tokens_[slot] = {};
  return slot;
}

void SequenceRunner::close(SequenceSlot slot) {
  store_.release(slot);
  tokens_.erase(slot);
}

Position SequenceRunner::length(SequenceSlot slot) const {
  return static_cast<Position>(tokens_.at(slot).size());
}

Result<std::vector<SequenceRunner::Output>> SequenceRunner::run(const std::vector<Chunk>& chunks,
                                                                ForwardObserver* observer) {
  runtime_.begin_step();
  kernels::KernelContext& ctx = runtime_.context();
  std::vector<BatchSequence> sequences;
  std::vector<int32_t> override_index;
  std::vector<Bf16> image_rows;
  for (const Chunk& chunk : chunks) {
    CEDAR_CHECK_OK(check_prompt(model_->config, chunk.tokens));
    std::vector<TokenId>& tokens = tokens_.at(chunk.slot);
    const auto start = static_cast<Position>(tokens.size());
    const auto rows = static_cast<int64_t>(chunk.tokens.size());
    tokens.insert(tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
    CEDAR_CHECK_OK(check_capacity(options_, store_, length(chunk.slot),
                                  store_.blocks_for(length(chunk.slot))));
    sequences.push_back(make_sequence(*model_, chunk.slot, tokens, start, rows));
    append_image_rows(chunk.images, model_->config.hidden_size, start, rows, override_index,
                      image_rows);
  }
  const StepBatch batch = make_step_batch(ctx, *model_, store_, std::move(sequences));
  Forward forward(*model_, store_, *engram_, options_.numeric, ctx, observer);
  const bool images = !image_rows.empty();
  CEDAR_TRY(StreamState state, forward.embed(batch, images ? upload(ctx, override_index) : nullptr,
                                             images ? upload(ctx, image_rows) : nullptr));
  const int64_t hidden_columns =
      static_cast<int64_t>(model_->config.dspark_target_layer_ids.size()) *
      model_->config.hidden_size;
  Bf16* main_hidden =
      model_->drafter ? ctx.arena->allocate<Bf16>(batch.rows * hidden_columns) : nullptr;
  SharedAttention shared;
  CEDAR_CHECK_OK(forward.run_layers(0, static_cast<LayerId>(model_->plan.layers.size()), batch,
                                    shared, state, main_hidden));
  if (main_hidden != nullptr) {
    CEDAR_CHECK_OK(Drafter(*model_, store_, ctx).observe(batch, main_hidden));
  }

  std::vector<int32_t> rows;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto begin = static_cast<int32_t>(batch.row_begin[i]);
    const auto count = static_cast<int32_t>(chunks[i].tokens.size());
    for (int32_t r = chunks[i].every_row ? 0 : count - 1; r < count; ++r) rows.push_back(begin + r);
  }
  const auto count = static_cast<int64_t>(rows.size());
  CEDAR_TRY(const float* device_logits, forward.logits(state, upload(ctx, rows), count));
  CEDAR_TRY(const auto logits,
            HostValues<float>::read(ctx, device_logits, count * model_->config.vocab_size));
  HostValues<Bf16> hidden;
  if (main_hidden != nullptr) {
    CEDAR_TRY(hidden, HostValues<Bf16>::read(ctx, main_hidden, batch.rows * hidden_columns));
  }
  std::vector<Output> outputs(chunks.size());
  const float* next = logits.data();
  for (size_t i = 0; i < chunks.size(); ++i) {
    const size_t wanted = chunks[i].every_row ? chunks[i].tokens.size() : 1;
    for (size_t r = 0; r < wanted; ++r, next += model_->config.vocab_size) {
      outputs[i].logits.emplace_back(next, next + model_->config.vocab_size);
    }
    if (main_hidden == nullptr) continue;
    for (size_t r = 0; r < chunks[i].tokens.size(); ++r) {
      const Bf16* row =
          hidden.data() + (batch.row_begin[i] + static_cast<int64_t>(r)) * hidden_columns;
      outputs[i].main_hidden.emplace_back(row, row + hidden_columns);
    }
  }
  return outputs;
}

Result<Draft> SequenceRunner::draft(SequenceSlot slot, TokenId next) {
  if (!model_->drafter) return make_error(Errc::unsupported, "the checkpoint has no drafter");
  DraftRequest request;
  request.slot = slot;
  request.position = length(slot) - 1;
  request.next = next;
  CEDAR_TRY(std::vector<Draft> drafts,
            Drafter(*model_, store_, runtime_.context()).propose({request}));
  return std::move(drafts.front());
}

}  // namespace cedar::engine
