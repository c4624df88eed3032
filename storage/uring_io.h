#pragma once

#include <memory>

#include "core/result.h"
#include "storage/file_io.h"

namespace cedar::storage {

/// Errors: unsupported, naming what the kernel said.
Result<std::unique_ptr<FileIo>> make_uring_io(int depth);

}  // namespace cedar::storage
