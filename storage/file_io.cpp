#include "storage/file_io.h"

#include "storage/thread_io.h"
#include "storage/uring_io.h"

namespace cedar::storage {

Result<std::unique_ptr<FileIo>> make_file_io(FileIoKind kind, int depth) {
  if (kind != FileIoKind::threads) {
    auto uring = make_uring_io(depth);
    if (uring || kind == FileIoKind::uring) return uring;
  }
  return make_thread_io(depth);
}

}  // namespace cedar::storage
