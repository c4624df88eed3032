#pragma once
// What every layer does, derived once from the config (spec/model.md 7.1). Everything else asks the
// plan.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/result.h"
#include "model/model_config.h"

namespace cedar::model {

enum class Half : uint8_t { encoder, decoder };
enum class LayerMode : uint8_t {
  window_only,  // no global attention
  full,         // writes main KV and index keys, scores all visible rows
  reindex,      // scores its source's index keys again with its own queries
  reuse,        // uses its index source's top-k list
};

struct LayerPlan {
  LayerId id = 0;
  Half half = Half::encoder;
  LayerMode mode = LayerMode::window_only;
  int64_t ratio = 0;                    // tokens per global row; 0 for window_only
  std::optional<LayerId> kv_source;     // owner of the main KV and index keys it reads
  std::optional<LayerId> index_source;  // owner of its top-k list
  bool makes_candidates = false;
  bool uses_candidates = false;  // reindex layers above the candidate source
  bool has_engram = false;
  bool is_draft_target = false;
  bool writes_kv() const { return mode == LayerMode::full; }
  bool scores() const { return mode == LayerMode::full || mode == LayerMode::reindex; }
};

/// Layers [first, last).
struct LayerRange {
  LayerId first = 0;
  LayerId last = 0;
  bool contains(LayerId layer) const { return first <= layer && layer < last; }
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

struct KvSource {
  LayerId layer = 0;
  int64_t ratio = 1;
};

struct ModelPlan {
  std::vector<LayerPlan> layers;
  /// First decoder layer: the only KV source with ratio 1, whose rows are a function of the
  /// encoder's output.
  LayerId boundary = 0;
  std::vector<KvSource> kv_sources;  // in layer order

  int64_t encoder_layers() const { return boundary; }
  int64_t decoder_layers() const { return static_cast<int64_t>(layers.size()) - boundary; }
  /// Rows after which no truncated window reaches the last row: (window - 1) * decoder layers + 1.
  int64_t exact_replay_rows(int64_t window) const { return (window - 1) * decoder_layers() + 1; }
  /// Index into kv_sources. REQUIRES: `layer` is a KV source.
  int64_t source_index(LayerId layer) const;
};

/// Errors: invalid_config naming the list and the entry that no plan explains: a source above its
/// reader missing, a ratio that differs from its source's, unsorted or duplicate ids, several
/// ratio-1 sources, a candidate source that is no Full layer, Engram or target layers out of range,
/// block tokens not divisible by every ratio.
Result<ModelPlan> make_layer_plan(const ModelConfig& config);

std::string_view to_string(LayerMode mode);
std::string_view to_string(Half half);

}  // namespace cedar::model
