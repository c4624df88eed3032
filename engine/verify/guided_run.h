#pragma once
// A whole run in which every layer reads the recorded top-k lists and candidate pools, while what it would have
// chosen itself is kept for comparison. Index scores are bf16 in the recording and tie often, and which of two
// tied rows the reference took is not defined: without guidance one such row changes everything behind it, and
// a correct run can no longer be told from one with a wrong owner.

#include <map>
#include <memory>
#include <vector>

#include "engine/verify/session.h"

namespace cedar::engine::verify {

/// Recorded choices of one step, by layer.
struct Guide {
  std::map<LayerId, Lists> lists;
  std::map<LayerId, std::vector<uint32_t>> pools;  // [rows, ceil(columns / 32)]
};

struct GuidedStep {
  std::vector<std::vector<float>> logits;  // of every row of the step
  std::vector<Bf16> last_main_hidden;  // [targets * hidden] of the last row; models with a drafter
};

class GuidedRun {
 public:
  static Result<GuidedRun> open(Session& session, Behaviour behaviour, int64_t max_tokens);

  /// Appends the tokens. The recorder then holds this step.
  Result<GuidedStep> step(const std::vector<TokenId>& tokens, const Guide& guide);

  Recorder& recorder() { return recorder_; }
  SequenceStore& store() { return sequence_.runner().store(); }
  SequenceSlot slot() const { return sequence_.slot(); }

 private:
  GuidedRun(Session& session, OpenSequence sequence)
      : session_(session), sequence_(std::move(sequence)) {}

  Session& session_;
  OpenSequence sequence_;
  std::vector<TokenId> tokens_;
  Recorder recorder_;
};

/// The lists and the pool of a prompt's prefill, from selection.safetensors; empty where it has none.
Guide prefill_guide(Session& session, const Prompt& prompt);

}  // namespace cedar::engine::verify
