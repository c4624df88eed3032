#pragma once

#include <cstdint>

#include "core/result.h"

namespace cedar {

/// What the system could give to processes without swapping; the page cache counts. -1: it does not say.
int64_t available_memory();

/// For memory that is written at once, which the system promises and then kills for. Errors: out_of_memory naming both
/// figures.
Status check_available(int64_t bytes);

}  // namespace cedar
