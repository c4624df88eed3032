#pragma once
// DSpark (spec/model.md 11): proposes a block of tokens from the backbone's hidden states of three layers. Its
// only history is a window ring per stage of context rows; proposals never enter it.

#include <cstdint>
#include <vector>

#include "engine/layer_ops.h"
#include "engine/loaded_model.h"
#include "engine/sequence_store.h"
#include "engine/step_batch.h"
#include "kernels/kernel_context.h"

namespace cedar::engine {

struct DraftRequest {
  SequenceSlot slot;
  Position position =
      0;             // i: last position the backbone consumed (its context row is in the rings)
  TokenId next = 0;  // the backbone's token for position i + 1
  Position window_floor = 0;  // lowest position whose context row exists
};

struct Draft {
  std::vector<TokenId> tokens;             // [block] proposed for positions i + 2 ...
  std::vector<float> confidence;           // [block] raw logits
  std::vector<std::vector<float>> logits;  // [block][vocab], Markov bias included
};

/// Borrows everything; one thread; greedy proposals. REQUIRES: model.drafter, and a store with one extra ring
/// per stage.
class Drafter {
 public:
  Drafter(const LoadedModel& model, SequenceStore& store, kernels::KernelContext& ctx)
      : model_(model), store_(store), ctx_(ctx) {}

  /// Writes the context rows of a batch's positions. `main_hidden` [rows, targets * hidden], as
  /// Forward::run_layers fills it.
  Status observe(const StepBatch& batch, const Bf16* main_hidden);

  Result<std::vector<Draft>> propose(const std::vector<DraftRequest>& requests);

 private:
  struct Rows {
    int64_t count = 0;
    const int64_t* positions = nullptr;
    const kernels::WindowSpan* spans = nullptr;
    const int32_t* ids = nullptr;
  };
  Rows block_rows(const std::vector<DraftRequest>& requests);
  Status run_stages(const Rows& rows, StreamState& state);
  Result<std::vector<Draft>> chain(const std::vector<DraftRequest>& requests, const Bf16* u,
                                   const float* logits);

  const LoadedModel& model_;
  SequenceStore& store_;
  kernels::KernelContext& ctx_;
};

}  // namespace cedar::engine
