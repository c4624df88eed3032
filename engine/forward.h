#pragma once
// The forward pass, written once over the operations of kernels/ (spec/model.md 5 - 9). Works on one batch of
// ragged rows and any contiguous range of layers; knows nothing of requests.

#include <cstdint>
#include <vector>

#include "engine/engram_source.h"
#include "engine/index_selection.h"
#include "engine/layer_ops.h"
#include "engine/loaded_model.h"
#include "engine/observer.h"
#include "engine/options.h"
#include "engine/sequence_store.h"
#include "engine/shared_attention.h"
#include "engine/step_batch.h"
#include "kernels/kernel_context.h"

namespace cedar::engine {

/// Borrows everything; one thread. Results live in the context's arena until it is reset.
class Forward {
 public:
  Forward(const LoadedModel& model, SequenceStore& store, EngramSource& engram,
          const NumericOptions& numeric, kernels::KernelContext& ctx,
          ForwardObserver* observer = nullptr, const ShardedKeys* sharded = nullptr);

  /// Fresh stream state: embeddings in every copy, identity pre-mix. `image_rows`, if any, replace the rows
  /// with override_index >= 0.
  Result<StreamState> embed(const StepBatch& batch, const int32_t* override_index = nullptr,
                            const Bf16* image_rows = nullptr);

  /// Layers [first, last), Engram included. `main_hidden`, if set, receives the drafter's inputs
  /// [rows, targets * hidden] for the target layers inside the range.
  Status run_layers(LayerId first, LayerId last, const StepBatch& batch, SharedAttention& shared,
                    StreamState& state, Bf16* main_hidden = nullptr);

  /// The encoder's last act: the boundary layer's global KV from the encoder's output, nothing else of it.
  Status project_boundary(const StepBatch& batch, const StreamState& state);

  /// Where the batch's sequences have the rows of a KV source: what its layer publishes.
  SharedKv source_rows(int64_t source, const StepBatch& batch);

  /// Logits [count, vocab] of the given rows of the state (device pointers), fp32.
  Result<float*> logits(const StreamState& state, const int32_t* rows, int64_t count);

  // Engram in two halves: what the host fetches, and what the device makes of it.
  int64_t engram_bytes(int64_t rows) const;
  /// The table rows of a batch, packed, engram_bytes(batch.rows).
  Result<std::vector<uint8_t>> engram_rows(LayerId layer, const StepBatch& batch);
  Status add_engram(LayerId layer, const StepBatch& batch, const uint8_t* packed, Bf16* x);

  // The pieces, one by one: what the stage tests feed with recorded inputs.
  Status engram(LayerId layer, const StepBatch& batch, Bf16* x);
  /// y = attention sublayer of u (after its norm) -> wo_b's output, both [rows, hidden].
  Status attention(LayerId layer, const StepBatch& batch, SharedAttention& shared, const Bf16* u,
                   Bf16* y);
  /// y = MoE of u (after its norm).
  Status ffn(LayerId layer, const StepBatch& batch, const Bf16* u, Bf16* y);
  Status layer(LayerId layer, const StepBatch& batch, SharedAttention& shared, StreamState& state);
  /// A layer whose end may be left to the next one; close_sublayer(state) before anything else reads its x.
  Status open_layer(LayerId layer, const StepBatch& batch, SharedAttention& shared,
                    StreamState& state);

 private:
  const model::LayerPlan& plan(LayerId layer) const {
    return model_.plan.layers[static_cast<size_t>(layer)];
  }
  const LayerWeights& weights(LayerId layer) const;
  Status attend_layer(LayerId layer, const StepBatch& batch, SharedAttention& shared,
                      const SelectionStorage& storage, const SublayerInput& in, SublayerEnd& end);
  Status route_layer(LayerId layer, const StepBatch& batch, const SublayerInput& in,
                     SublayerEnd& end);
  kernels::PagedRows index_keys(const model::LayerPlan& plan, const StepBatch& batch,
                                const SharedKv& kv);
  Status write_global(const model::LayerPlan& plan, const StepBatch& batch, const SharedKv& kv,
                      const Bf16* u);
  Status write_rows(const LayerWeights& weights, const SharedKv& kv, const Bf16* latent,
                    const int64_t* positions, const int32_t* sequences, const int64_t* targets,
                    int64_t rows);

  const LoadedModel& model_;
  SequenceStore& store_;
  EngramSource& engram_;
  NumericOptions numeric_;
  kernels::KernelContext& ctx_;
  ForwardObserver* observer_;
  const ShardedKeys* sharded_;
};

}  // namespace cedar::engine
