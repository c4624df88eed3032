#pragma once

#include <string>

#include "core/result.h"

namespace cedar::model {

/// The whole file. Errors: not_found, io_error, with the path.
Result<std::string> read_text_file(const std::string& path);

/// The error of a failed system call on a file. `code` is its errno.
Error file_error(const std::string& path, int code);

}  // namespace cedar::model
