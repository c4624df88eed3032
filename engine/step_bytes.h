#pragma once
// The floor of a decode step: what it cannot avoid reading from memory (design: docs/architecture.md, speed).

#include <cstdint>

#include "engine/loaded_model.h"

namespace cedar::engine {

struct StepBytes {
  int64_t weights = 0;  // every weight of the layers once, plus the experts chosen
  int64_t kv = 0;  // window and selected global rows, index keys of layers that score all of them

  int64_t total() const { return weights + kv; }
};

/// For one step of `sequences` sequences whose contexts hold `context` tokens each. Chosen experts are counted
/// as distinct up to the number of experts: the least a step with different tokens can read.
StepBytes decode_step_bytes(const LoadedModel& model, int64_t sequences, int64_t context);

/// Multiply-adds of one prompt row through the encoder layers, attention included, times two.
double prefill_row_flops(const LoadedModel& model, int64_t context);

}  // namespace cedar::engine
