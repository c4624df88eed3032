#pragma once
// Which table rows the tokens of a step need. They depend on tokens alone, so they can be asked for before the step.

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "engine/engram_source.h"
#include "engine/loaded_model.h"
#include "engine/step_batch.h"

namespace cedar::engine {

/// Rows of the layer's table, [rows of all sequences, columns]. REQUIRES: the layer has an Engram module.
std::vector<int64_t> engram_row_ids(const LoadedModel& model, LayerId layer,
                                    std::span<const BatchSequence> sequences);

/// Tells the source, where that is of use, what these layers will fetch in a step over these sequences.
void prefetch_engram(const LoadedModel& model, model::LayerRange layers,
                     std::span<const BatchSequence> sequences, EngramSource& source);

}  // namespace cedar::engine
