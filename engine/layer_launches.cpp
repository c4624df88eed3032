#include "engine/layer_launches.h"

#include "core/recorded_launches.h"
#include "core/units.h"
#include "engine/forward.h"
#include "engine/request_checks.h"
#include "engine/runtime.h"

namespace cedar::engine {

Result<int64_t> count_layer_launches(std::shared_ptr<const LoadedModel> model,
                                     const EngineOptions& options, LayerId layer, int64_t rows,
                                     bool decode) {
  const int64_t sequences = decode ? rows : 1, each = decode ? 1 : rows;
  EngineOptions settings = options;
  settings.max_sequences = static_cast<int32_t>(sequences);
  CEDAR_TRY(settings, complete_options(settings, *model));
  const auto layers = static_cast<LayerId>(model->plan.layers.size());
  const int64_t pages = ceil_div(each, model->layout.block_tokens);
  CEDAR_TRY(SequenceStore store,
            SequenceStore::create(*model, 0, layers, 0, pages * sequences, settings.max_sequences));
  const auto engram = local_engram_source(model);
  Runtime runtime(settings);
  kernels::KernelContext& ctx = runtime.context();
  const std::vector<TokenId> tokens(static_cast<size_t>(each), model->config.bos_token_id);
  std::vector<BatchSequence> batch_sequences;
  for (int64_t i = 0; i < sequences; ++i) {
    CEDAR_TRY(const SequenceSlot slot, store.acquire(pages));
    batch_sequences.push_back(make_sequence(*model, slot, tokens, 0, each));
  }
  Forward forward(*model, store, *engram, settings.numeric, ctx);
  const StepBatch batch = make_step_batch(ctx, *model, store, std::move(batch_sequences));
  CEDAR_TRY(StreamState state, forward.embed(batch));
  SharedAttention shared;
  CEDAR_CHECK_OK(forward.run_layers(0, layer, batch, shared, state));
  // Twice: what the first leaves to the next one's beginning, the second does for the first.
  CEDAR_CHECK_OK(forward.open_layer(layer, batch, shared, state));
  CEDAR_CHECK_OK(RecordedLaunches::begin(ctx.device, ctx.cuda_stream));
  const Status recorded = forward.open_layer(layer, batch, shared, state);
  CEDAR_TRY(const RecordedLaunches launches, RecordedLaunches::end(ctx.device, ctx.cuda_stream));
  CEDAR_CHECK_OK(recorded);
  CEDAR_CHECK_OK(close_sublayer(ctx, state));
  CEDAR_CHECK_OK(synchronize(ctx.device, ctx.cuda_stream));
  return launches.kernels();
}

}  // namespace cedar::engine
