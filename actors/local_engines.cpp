#include "actors/local_engines.h"

#include <utility>

#include "actors/decoder_stage.h"
#include "actors/encoder_stage.h"
#include "actors/kv_cache.h"
#include "engine/engram_source.h"
#include "model/block_key.h"

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

std::string kv_fingerprint(const engine::LoadedModel& model, const engine::EngineOptions& options) {
  // Behind cached blocks, bounded replay computes other bytes than exact replay.
  std::string mode = options.resume == engine::ReplayMode::exact ? "exact" : "bounded";
  mode += " index " + std::to_string(static_cast<int>(options.numeric.index_score));
  if (options.numeric.compat_stale_index_key) mode += " stale keys";
  const model::Sha256 digest = model::model_fingerprint(model.checkpoint, mode);
  return {digest.begin(), digest.end()};
}

std::function<KvCacheActor(caf::actor_system&)> cache_spawner(
    const CacheOptions& options, int64_t block_bytes, const DataPlane& plane,
    std::shared_ptr<LoadBoard> board, std::shared_ptr<monitoring::Metrics> metrics) {
  return [setup = KvCacheSetup{options, block_bytes, plane, std::move(board), std::move(metrics)}](
             caf::actor_system& system) {
    return KvCacheActor(system.spawn<KvCache, caf::detached>(setup));
  };
}

StageSpawners detached_stages(EncoderEngineFactory encoder, DecoderEngineFactory decoder,
                              const DataPlane& plane, std::shared_ptr<ExportMemory> memory,
                              std::shared_ptr<LoadBoard> board,
                              std::shared_ptr<monitoring::Trace> trace,
                              std::shared_ptr<monitoring::Metrics> metrics) {
  StageSpawners spawners;
  spawners.endpoint = plane.endpoint;
  if (encoder) {
    spawners.encoder = [setup =
                            EncoderStageSetup{std::move(encoder), std::move(memory), plane, board,
                                              trace, metrics}](caf::actor_system& system) {
      return EncoderStageActor(system.spawn<EncoderStage, caf::detached>(setup));
    };
  }
  if (decoder) {
    spawners.decoder =
        [setup = DecoderStageSetup{std::move(decoder), plane, board, {}, trace, metrics}](
            caf::actor_system& system) {
          return DecoderStageActor(system.spawn<DecoderStage, caf::detached>(setup));
        };
  }
  return spawners;
}

}  // namespace cedar::actors
