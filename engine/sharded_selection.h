#pragma once
// A full scan of a step in which some sequences' index keys are spread (engine/index_service.h).

#include <cstdint>

#include "core/result.h"
#include "engine/index_selection.h"
#include "engine/index_service.h"

namespace cedar::engine {

/// Writes in.storage just as a scan of all keys here would: same lists, same candidate pool, bit for bit, whoever answers and
/// whoever does not. `questions`: of all rows of the batch; the best of a row are in.storage.k. CPU only.
Status select_sharded(kernels::KernelContext& ctx, const SelectionInput& in,
                      const IndexQuestions& questions);

/// Whether any sequence of the batch has keys elsewhere.
bool any_sharded(const SelectionInput& in);

}  // namespace cedar::engine
