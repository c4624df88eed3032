#pragma once
// The engines of this process and the stage actors that run them.

#include <functional>
#include <memory>
#include <string>

#include "actors/cache_options.h"
#include "actors/data_plane.h"
#include "actors/export_memory.h"
#include "actors/load_board.h"
#include "actors/local_stages.h"
#include "actors/stage_engines.h"
#include "core/result.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "monitoring/metrics.h"
#include "monitoring/trace.h"

namespace cedar::actors {

struct StageRoles {
  bool encoder = true;
  bool decoder = true;
};

struct LocalEngines {
  // Null for a role that is not wanted. The first call hands out an engine that was made beforehand, so that its errors
  // reach the user; later ones make a new one.
  EncoderEngineFactory encoder;
  DecoderEngineFactory decoder;
  StageCapacity encoder_capacity;
  StageCapacity decoder_capacity;
};

/// The encoder's blocks lie in `memory`. `engram`: null for the tables of the model's checkpoint. Errors: those of the
/// engines.
Result<LocalEngines> make_local_engines(std::shared_ptr<const engine::LoadedModel> model,
                                        const engine::EngineOptions& options, StageRoles roles,
                                        std::shared_ptr<ExportMemory> memory,
                                        std::shared_ptr<engine::EngramSource> engram = nullptr);

/// What KV blocks of this model and these settings are worth the same as: part of their keys.
std::string kv_fingerprint(const engine::LoadedModel& model, const engine::EngineOptions& options);

/// A KV cache of this process, on a thread of its own, because it copies much.
std::function<KvCacheActor(caf::actor_system&)> cache_spawner(
    const CacheOptions& options, int64_t block_bytes, const DataPlane& plane,
    std::shared_ptr<LoadBoard> board,
    std::shared_ptr<monitoring::Metrics> metrics = monitoring::no_metrics());

/// Stage actors of this process, on threads of their own.
StageSpawners detached_stages(
    EncoderEngineFactory encoder, DecoderEngineFactory decoder, const DataPlane& plane,
    std::shared_ptr<ExportMemory> memory, std::shared_ptr<LoadBoard> board,
    std::shared_ptr<monitoring::Trace> trace = nullptr,
    std::shared_ptr<monitoring::Metrics> metrics = monitoring::no_metrics());

}  // namespace cedar::actors
