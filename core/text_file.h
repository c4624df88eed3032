#pragma once
// Whole files as text, read without exceptions.

#include <cstdint>
#include <string>

#include "core/result.h"

namespace cedar {

/// Which kinds of file a reader takes. Opening a named pipe that nobody writes to would wait for ever.
enum class FileKind : uint8_t {
  regular,
  any,  // pipes and devices, too: what a person names on the command line
};

/// The whole file. Errors: not_found, io_error (a directory among them), beginning with the path.
Result<std::string> read_text_file(const std::string& path, FileKind kind = FileKind::regular);

/// A descriptor for reading. REQUIRES: the caller closes it. Errors: as read_text_file.
Result<int> open_file(const std::string& path, FileKind kind);

/// All that is left to read of a descriptor; `name` begins an error's text. Errors: io_error.
Result<std::string> read_all(int descriptor, const std::string& name);

/// The error of a failed system call on a file. `code` is its errno.
Error file_error(const std::string& path, int code);

}  // namespace cedar
