#pragma once
// Whole sequences through all layers, any chunking, every row's logits on request: what verification and the
// consistency tests drive. Serving uses the two engines instead, which never run the decoder half on a prompt.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/drafter.h"
#include "engine/engram_source.h"
#include "engine/forward.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "engine/prefill_engine.h"
#include "engine/runtime.h"
#include "engine/sequence_store.h"

namespace cedar::engine {

class SequenceRunner {
 public:
  /// REQUIRES: the model was loaded with Role::all or Role::decoder.
  static Result<std::unique_ptr<SequenceRunner>> create(std::shared_ptr<const LoadedModel> model,
                                                        const EngineOptions& options);

  /// Room for `max_tokens` tokens. Errors: overloaded, context_too_long.
  Result<SequenceSlot> open(int64_t max_tokens);
  void close(SequenceSlot slot);

  struct Chunk {
    SequenceSlot slot;
    std::vector<TokenId> tokens;         // appended to the sequence
    std::vector<ImageRows> images = {};  // positions are absolute
    bool every_row = false;              // logits of all rows instead of the last
  };
  struct Output {
    std::vector<std::vector<float>> logits;      // [rows or 1][vocab]
    std::vector<std::vector<Bf16>> main_hidden;  // [rows][targets * hidden]; models with a drafter
  };
  /// One step over all chunks. REQUIRES: distinct slots.
  Result<std::vector<Output>> run(const std::vector<Chunk>& chunks,
                                  ForwardObserver* observer = nullptr);

  /// A draft after the last token of `slot`, `next` being the backbone's choice. Errors: unsupported without
  /// a drafter.
  Result<Draft> draft(SequenceSlot slot, TokenId next);

  Position length(SequenceSlot slot) const;
  SequenceStore& store() { return store_; }
  Runtime& runtime() { return runtime_; }
  EngramSource& engram() { return *engram_; }
  const LoadedModel& model() const { return *model_; }
  const EngineOptions& options() const { return options_; }

 private:
  SequenceRunner(std::shared_ptr<const LoadedModel> model, const EngineOptions& options,
                 SequenceStore store);

  std::shared_ptr<const LoadedModel> model_;
  std::shared_ptr<EngramSource> engram_;
  EngineOptions options_;
  Runtime runtime_;
  SequenceStore store_;
  std::map<SequenceSlot, std::vector<TokenId>> tokens_;
};

}  // namespace cedar::engine
