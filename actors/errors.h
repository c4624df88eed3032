#pragma once
// cedar::Error as a caf::error and back; code and context survive the way through a message.

#include <caf/error.hpp>

#include "core/result.h"

namespace cedar::actors {

caf::error to_caf(const Error& error);
/// Errors of CAF itself are translated: a dead or unreachable actor is unavailable, a request that ran into
/// its timeout is deadline_exceeded.
Error from_caf(const caf::error& error);

}  // namespace cedar::actors
