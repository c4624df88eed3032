#pragma once
// A rank of a decoder pipeline that is not its face; the last one samples. No CAF type appears here.

#include <memory>

#include "actors/node_service.h"
#include "actors/pipeline.h"
#include "engine/engram_source.h"
#include "engine/loaded_model.h"
#include "engine/options.h"

namespace cedar::actors {

struct DecoderPartSetup {
  std::shared_ptr<const engine::LoadedModel> model;  // the rank's layers
  std::shared_ptr<engine::EngramSource> engram;
  engine::EngineOptions options;  // with constraints, for the last rank
  PipelinePlace place;
};

/// What a part holds, for tests.
struct DecoderPartLoad {
  int64_t sequences = 0;
  int64_t free_blocks = 0;
  int64_t total_blocks = 0;
};

class DecoderPart : public NodeService {
 public:
  static Result<std::unique_ptr<DecoderPart>> start(const DataPlane& plane, DecoderPartSetup setup);
  virtual DecoderPartLoad load() const = 0;
};

NodeServiceFactory decoder_part(DecoderPartSetup setup);

}  // namespace cedar::actors
