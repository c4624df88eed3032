#pragma once
// Decode steps as recorded launches. A step that only writes one token of every sequence is padded to one of few
// shapes; the second step of a shape is recorded, those after it are replayed: inputs lie at the same addresses, as the
// workspace is this object's alone. A recording is cut before every Engram layer, whose rows the host fetches while the
// device is busy with the layers before.

#include <map>
#include <optional>
#include <vector>

#include "core/recorded_launches.h"
#include "engine/forward.h"

namespace cedar::engine {

class DecodeGraphs {
 public:
  /// Borrows everything; `ctx` is the engine's, whose arena stays untouched.
  DecodeGraphs(const LoadedModel& model, SequenceStore& store, EngramSource& engram,
               const NumericOptions& numeric, const kernels::KernelContext& ctx);

  /// Whether these sequences, one row each, make a step that can be recorded.
  bool takes(const std::vector<BatchSequence>& sequences) const;

  /// Logits [sequences, vocab], in context()'s arena until the next step. The halves' sequences differ in their window floors
  /// alone. REQUIRES: takes(encoder).
  Result<const float*> step(std::vector<BatchSequence> encoder, std::vector<BatchSequence> decoder);
  /// The engine's context with this object's workspace.
  kernels::KernelContext& context() { return ctx_; }
  /// Whether the last step was a replay.
  bool replayed() const { return replayed_; }

 private:
  /// Inputs of a step, at addresses that depend on its shape alone.
  struct Inputs {
    StepBatch encoder, decoder;
    std::map<LayerId, uint8_t*> engram;  // packed rows
    const int32_t* rows = nullptr;       // 0, 1, ...: which rows' logits
  };
  struct Segment {
    std::optional<LayerId> engram;  // whose rows must be there before it
    RecordedLaunches launches;
  };
  struct Recording {
    uint64_t generation = 0;  // of the arena
    std::vector<Segment> segments;
    const float* logits = nullptr;
    Arena::Mark end;  // of what its launches use
  };

  StepShape shape_of(const std::vector<BatchSequence>& sequences) const;
  Inputs place_inputs(const StepShape& shape, std::vector<BatchSequence> encoder,
                      std::vector<BatchSequence> decoder);
  Status fetch_engram(LayerId layer, const Inputs& inputs);
  /// The launches of a step; engram(layer) comes before those that read the layer's rows.
  template <class Engram>
  Result<const float*> run(const Inputs& inputs, const Engram& engram);
  Result<Recording> record(const Inputs& inputs);

  const LoadedModel& model_;
  SequenceStore& store_;
  Arena arena_;
  kernels::KernelContext ctx_;
  Forward forward_;
  std::map<StepShape, Recording> recordings_;
  std::map<StepShape, uint64_t>
      launched_;          // generation of the arena after a step of the shape was launched
  bool refused_ = false;  // a recording failed: never again
  bool replayed_ = false;
};

}  // namespace cedar::engine
