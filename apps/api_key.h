#pragma once
// The API key that a client program sends. It never comes on the command line, which every user of a machine can read.

#include <string>

#include "core/result.h"

namespace cedar::apps {

/// The first line of `file`; without a file, the variable CEDAR_API_KEY of the environment; empty when neither is there.
/// Errors: those of read_text; invalid_argument naming the file or the variable, never the key.
Result<std::string> read_api_key(const std::string& file);

}  // namespace cedar::apps
