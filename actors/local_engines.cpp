#include "actors/local_engines.h"

#include <utility>

#include "actors/decoder_stage.h"
#include "actors/encoder_stage.h"
#include "engine/engram_source.h"

namespace cedar::actors {
namespace {

template <class Engine, class StageEngine>
class FirstThenNew {
 public:
  using Make = std::function<Result<std::unique_ptr<Engine>>()>;
  FirstThenNew(std::unique_ptr<Engine> first, Make make)
      : first_(std::make_shared<std::unique_ptr<Engine>>(std::move(first))),
        make_(std::move(make)) {}

  Result<std::unique_ptr<StageEngine>> operator()() const {
    if (*first_) return as_stage_engine(std::move(*first_));
    CEDAR_TRY(auto engine, make_());
    return as_stage_engine(std::move(engine));
  }

 private:
  std::shared_ptr<std::unique_ptr<Engine>> first_;
  Make make_;
};

}  // namespace

Result<LocalEngines> make_local_engines(std::shared_ptr<const engine::LoadedModel> model,
                                        const engine::EngineOptions& options, StageRoles roles,
                                        std::shared_ptr<ExportMemory> memory,
                                        std::shared_ptr<engine::EngramSource> engram) {
  if (!engram) engram = engine::local_engram_source(model);
  LocalEngines engines;
  if (roles.encoder) {
    const auto make = [model, engram, options, memory] {
      engine::EngineOptions encoder = options;
      encoder.block_memory = memory;
      return engine::PrefillEngine::create(model, engram, encoder);
    };
    CEDAR_TRY(auto first, make());
    engines.encoder_capacity = {options.max_sequences, first->load().free_blocks,
                                model->layout.block_tokens};
    engines.encoder = FirstThenNew<engine::PrefillEngine, EncoderEngine>(std::move(first), make);
  }
  if (roles.decoder) {
    const auto make = [model, engram, options] {
      return engine::DecodeEngine::create(model, engram, options);
    };
    CEDAR_TRY(auto first, make());
    engines.decoder_capacity = {options.max_sequences, first->load().total_blocks,
                                model->layout.block_tokens};
    engines.decoder = FirstThenNew<engine::DecodeEngine, DecoderEngine>(std::move(first), make);
  }
  return engines;
}

StageSpawners detached_stages(EncoderEngineFactory encoder, DecoderEngineFactory decoder,
                              const DataPlane& plane, std::shared_ptr<ExportMemory> memory,
                              std::shared_ptr<LoadBoard> board,
                              std::shared_ptr<monitoring::Trace> trace) {
  StageSpawners spawners;
  spawners.endpoint = plane.endpoint;
  if (encoder) {
    spawners.encoder = [setup = EncoderStageSetup{std::move(encoder), std::move(memory), plane,
                                                  board, trace}](caf::actor_system& system) {
      return EncoderStageActor(system.spawn<EncoderStage, caf::detached>(setup));
    };
  }
  if (decoder) {
    spawners.decoder = [setup = DecoderStageSetup{std::move(decoder), plane, board, {}, trace}](
                           caf::actor_system& system) {
      return DecoderStageActor(system.spawn<DecoderStage, caf::detached>(setup));
    };
  }
  return spawners;
}

}  // namespace cedar::actors
