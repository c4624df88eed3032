#pragma once
// The indexer of one layer: scores over its owner's keys, top-k lists, candidate pool (spec/model.md 7.6, 7.7).

#include <cstdint>

#include "engine/layer_ops.h"
#include "engine/observer.h"
#include "engine/options.h"
#include "engine/shared_attention.h"
#include "engine/step_batch.h"

namespace cedar::engine {

/// Where a scoring layer's results live: for the rest of the step, not only for the sublayer that makes them.
struct SelectionStorage {
  int32_t* indices = nullptr;  // [rows, k]
  int64_t k = 0;
  uint32_t* mask = nullptr;  // [rows, stride]; layers that make the candidate pool only
  int64_t stride = 0;        // words
};
SelectionStorage reserve_selection(kernels::KernelContext& ctx, const model::ModelConfig& config,
                                   const model::LayerPlan& plan, const StepBatch& batch);

class ShardedKeys;

struct SelectionInput {
  const model::LayerPlan* plan = nullptr;
  const LayerWeights* weights = nullptr;
  const StepBatch* batch = nullptr;
  const Bf16* u = nullptr;  // normed sublayer input [rows, hidden]
  kernels::Q8Rows qr;       // [rows, q rank]
  SharedKv kv;              // of the layer's owner
  /// Keys to score; differs from kv.index only under compat_stale_index_key.
  kernels::PagedRows keys;
  const float* inv_freq = nullptr;
  SelectionStorage storage;
  int32_t source = 0;                    // of kv: index into ModelPlan::kv_sources
  const ShardedKeys* sharded = nullptr;  // sequences whose keys are spread; null: none
};

/// Publishes the layer's top-k list, and its candidate pool if the plan says so.
Status select_rows(kernels::KernelContext& ctx, const model::ModelConfig& config,
                   const NumericOptions& numeric, const SelectionInput& in, SharedAttention& shared,
                   ForwardObserver* observer);

}  // namespace cedar::engine
