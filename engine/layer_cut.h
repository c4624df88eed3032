#pragma once
// What goes from one part of the layers to the next within a step, when they run in different engines: everything that
// later layers read of earlier ones (engine/shared_attention.h), and what only the last part can hand over as a whole.
//
//   x, pre         the rows' residual streams and pre-mix
//   top-k lists    of earlier layers that later ones reuse
//   candidates     the pool of an earlier layer that later ones search in
//   global rows    what earlier KV sources wrote in this step: main rows, then index keys, per source and sequence
//   state          of sequences that end with this step: windows of earlier layers and open groups of earlier sources,
//                  the beginning of what engine/handoff.h has of both
//
// Packed one after the other without headers: the plan and the batch give every size on both sides.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "engine/forward.h"
#include "engine/options.h"
#include "engine/sequence_store.h"
#include "engine/shared_attention.h"
#include "engine/step_batch.h"

namespace cedar::engine {

/// Window rows and open groups of one sequence, as engine/handoff.h has them. Empty: it does not end with this step.
struct CutState {
  Buffer* windows = nullptr;  // host, of all layers of the half
  Buffer* pending = nullptr;  // host, of all sources; no bytes: no group is open
};

/// The cut in front of layer `cut`, for layers up to `end`. Borrows the model.
class LayerCut {
 public:
  LayerCut(const LoadedModel& model, LayerId cut, LayerId end);

  /// Of one step. `states`: one for each of the batch's sequences.
  int64_t bytes(const StepBatch& batch, std::span<const CutState> states) const;
  /// Of any step of so many rows and sequences; `states`: whether sequences may end with it.
  int64_t max_bytes(const EngineOptions& options, int64_t rows, int64_t sequences,
                    bool states) const;

  /// After the layers before the cut have run. REQUIRES: `to` has bytes(batch, states); a closed state.
  Status write(kernels::KernelContext& ctx, SequenceStore& store, const StepBatch& batch,
               const SharedAttention& shared, const StreamState& state,
               std::span<const CutState> states, std::span<std::byte> to) const;

  /// Before the layers behind the cut run: fills `shared`, the pages, the stream state and the beginning of `states`.
  /// Errors: invalid_argument naming expected and got when the bytes are not those of this batch.
  Result<StreamState> read(kernels::KernelContext& ctx, SequenceStore& store, Forward& forward,
                           const StepBatch& batch, SharedAttention& shared,
                           std::span<const CutState> states, std::span<const std::byte> from) const;

 private:
  int64_t list_length(const StepBatch& batch, LayerId owner) const;
  int64_t pool_stride(const StepBatch& batch, LayerId owner) const;
  int64_t window_bytes(const CutState& state) const;
  int64_t pending_bytes(const CutState& state) const;
  template <class Move>
  Status move_global(SequenceStore& store, const StepBatch& batch, const Move& move) const;

  const LoadedModel& model_;
  LayerId cut_;
  std::vector<LayerId> lists_;   // owners, of lists that later layers read
  std::vector<LayerId> pools_;   // the same, of candidate pools
  std::vector<size_t> sources_;  // KV sources before the cut
  int64_t pending_bytes_ = 0;    // of their open groups
};

}  // namespace cedar::engine
