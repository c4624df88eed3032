#pragma once
// Reads and writes of files that do not make the caller wait. Two implementations: io_uring, and a pool of threads for where
// the kernel or a container forbids it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "core/result.h"

namespace cedar::storage {

enum class FileIoKind : uint8_t { automatic, uring, threads };

struct FileOperation {
  int fd = -1;
  bool write = false;
  std::byte* data = nullptr;  // aligned to kFileAlignment, as offset and bytes are
  int64_t bytes = 0;
  int64_t offset = 0;
  /// Once, from a thread of the FileIo; must not block. io_error naming what the system said, or that the file is shorter.
  std::function<void(Status)> done;
};

/// What files opened past the page cache ask of memory, offsets and sizes.
inline constexpr int64_t kFileAlignment = 4096;

class FileIo {
 public:
  /// Waits for what is under way.
  virtual ~FileIo() = default;
  /// Any thread. Beyond `depth` operations wait inside, without bound: whoever submits bounds them.
  virtual void submit(FileOperation operation) = 0;
  virtual std::string_view name() const = 0;
};

/// `depth`: operations at the device at a time. `automatic` takes io_uring where it is allowed. Errors: unsupported
/// (io_uring was asked for and is not to be had), naming why.
Result<std::unique_ptr<FileIo>> make_file_io(FileIoKind kind, int depth);

}  // namespace cedar::storage
