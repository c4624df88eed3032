#pragma once
// How many kernels a GPU starts for a layer, as its driver counts the nodes of the layer's recording.

#include <cstdint>
#include <memory>

#include "core/result.h"
#include "engine/loaded_model.h"
#include "engine/options.h"

namespace cedar::engine {

/// The launches of `layer` between two others of the same kind, for `rows` rows: of one sequence each (a decode step), or of
/// one sequence (a prompt). Errors: unsupported for the CPU.
Result<int64_t> count_layer_launches(std::shared_ptr<const LoadedModel> model,
                                     const EngineOptions& options, LayerId layer, int64_t rows,
                                     bool decode);

}  // namespace cedar::engine
