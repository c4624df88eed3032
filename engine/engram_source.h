#pragma once
// Where Engram rows come from: the mapped checkpoint here, a remote shard in a cluster.

#include <cstdint>
#include <memory>
#include <span>

#include "core/ids.h"
#include "core/result.h"

namespace cedar::engine {

struct LoadedModel;

class EngramSource {
 public:
  virtual ~EngramSource() = default;
  /// Copies table rows of `layer` into `packed`, [row_ids.size(), dim + dim / 32]: codes, then scales.
  /// Called from the engine's thread. Errors: unavailable, deadline_exceeded (remote sources).
  virtual Status fetch(LayerId layer, std::span<const int64_t> row_ids, uint8_t* packed) = 0;
};

/// Reads the tables of a checkpoint that holds them. `model` must outlive the source.
std::shared_ptr<EngramSource> local_engram_source(std::shared_ptr<const LoadedModel> model);

}  // namespace cedar::engine
