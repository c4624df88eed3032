#pragma once
// What a model costs, computed from its config: bytes by group and role, KV and window bytes, the
// hand-off, parameters used per token (spec/ced.md sections 2 and 8, spec/checkpoint.md 4.5 and 5).

#include <cstdint>
#include <vector>

#include "model/expected_tensors.h"
#include "model/kv_layout.h"
#include "model/layer_plan.h"
#include "model/model_config.h"

namespace cedar::model {

struct TensorTotals {
  int64_t tensors = 0;
  int64_t bytes = 0;
  int64_t parameters = 0;
  void add(const ExpectedTensor& tensor);
};

struct GroupTotals {
  TensorGroup group = TensorGroup::embed;
  TensorTotals totals;
};

/// What an encoder node sends once per prompt, in bytes, next to the KV blocks.
struct HandoffBytes {
  int64_t encoder_windows = 0;
  int64_t open_groups = 0;    // at most; none when the prompt ends on a group's edge
  int64_t boundary_rows = 0;  // streams and pre-mix of the last `sliding_window` tokens
  int64_t ngram_history = 0;
  int64_t total() const { return encoder_windows + open_groups + boundary_rows + ngram_history; }
};

struct Footprint {
  std::vector<GroupTotals> groups;  // those that hold tensors
  TensorTotals all;
  TensorTotals encoder;  // without Engram tables
  TensorTotals decoder;  // without Engram tables and drafter
  TensorTotals drafter;
  TensorTotals engram_tables;
  /// Parameters that one token multiplies with: routed experts count by their share of chosen ones,
  /// lookups (embedding, Engram tables) not at all.
  int64_t active_prefill_parameters = 0;
  int64_t active_decode_parameters = 0;

  KvLayout kv;
  int64_t layer_window_bytes = 0;    // one layer's ring
  int64_t window_bytes = 0;          // all backbone layers
  int64_t drafter_window_bytes = 0;  // all stages
  HandoffBytes handoff;
};

/// REQUIRES: a config that parse_model_config accepted, and its plan.
Footprint make_footprint(const ModelConfig& config, const ModelPlan& plan);

/// Earlier models of the line, for comparison: V4-Flash's 21 ratio-4 layers with index keys and 20
/// ratio-128 layers; the 67B V1's 95 layers of 8 bf16 KV heads (spec/ced.md 8.2, 8.4).
constexpr double kV4FlashBytesPerToken = 21 * (584 + 68) / 4.0 + 20 * 584 / 128.0;
constexpr double kV1BytesPerToken = 95.0 * 8 * 128 * 2 * 2;

}  // namespace cedar::model
