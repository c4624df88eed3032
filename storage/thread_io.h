#pragma once

#include <memory>

#include "storage/file_io.h"

namespace cedar::storage {

/// pread and pwrite on `threads` threads.
std::unique_ptr<FileIo> make_thread_io(int threads);

}  // namespace cedar::storage
