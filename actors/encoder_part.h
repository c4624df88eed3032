#pragma once
// A rank of an encoder pipeline that is not its face: takes rows from the rank before, runs its layers, and hands them to
// the one behind; the last offers blocks and states to decoders. No CAF type appears here.

#include <memory>

#include "actors/node_service.h"
#include "actors/pipeline.h"
#include "engine/engram_source.h"
#include "engine/loaded_model.h"
#include "engine/options.h"

namespace cedar::actors {

struct EncoderPartSetup {
  std::shared_ptr<const engine::LoadedModel> model;  // the rank's layers
  std::shared_ptr<engine::EngramSource> engram;
  engine::EngineOptions options;
  PipelinePlace place;
};

/// What a part holds; for tests and the end of a drain.
struct EncoderPartLoad {
  int64_t prompts = 0;
  int64_t free_blocks = 0;
  int64_t total_blocks = 0;
  int64_t rows_in_slots = 0;   // fetched or being fetched, and not yet computed
  int64_t rows_out_slots = 0;  // computed, and not yet fetched
};

class EncoderPart : public NodeService {
 public:
  static Result<std::unique_ptr<EncoderPart>> start(const DataPlane& plane, EncoderPartSetup setup);
  virtual EncoderPartLoad load() const = 0;
};

NodeServiceFactory encoder_part(EncoderPartSetup setup);

}  // namespace cedar::actors
