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
  /// Rows that will be fetched soon. Never waits; may do nothing. Called from the engine's thread.
  virtual void prefetch(LayerId layer, std::span<const int64_t> row_ids) {
    static_cast<void>(layer);
    static_cast<void>(row_ids);
  }
  /// Whether prefetch() is worth computing row ids for.
  virtual bool wants_prefetch() const { return false; }
};

/// Reads the tables of a checkpoint that holds them. `model` must outlive the source.
std::shared_ptr<EngramSource> local_engram_source(std::shared_ptr<const LoadedModel> model);

}  // namespace cedar::engine
