#pragma once
// A decoder whose layers are spread over several nodes, as its stage actor drives it: an engine whose first rank is here.
// Sequences are dealt to as many groups as steps may be under way; each group's rows go through the ranks on their own,
// so that a rank works on one group while others are elsewhere. The last rank samples, and the tokens come back with the
// answer. No CAF type appears here.
//
// One thread, the stage's; step() waits for the first group that is back.

#include <memory>

#include "actors/data_plane.h"
#include "actors/pipeline.h"
#include "actors/stage_engines.h"
#include "engine/engram_source.h"
#include "engine/loaded_model.h"
#include "engine/options.h"

namespace cedar::actors {

struct DecoderFaceSetup {
  std::shared_ptr<const engine::LoadedModel> model;  // the first rank's layers
  std::shared_ptr<engine::EngramSource> engram;
  engine::EngineOptions options;
  DataPlane plane;  // with calls and a directory; outlives the engine
  PipelinePlace place;
};

/// Errors: those of the rank, and invalid_argument when it is not the first one of several.
Result<std::unique_ptr<DecoderEngine>> make_decoder_face(DecoderFaceSetup setup);

}  // namespace cedar::actors
