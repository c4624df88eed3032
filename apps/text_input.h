#pragma once
// Text that a person names on the command line: a file, a pipe, or "-" for standard input.

#include <optional>
#include <string>

#include "core/result.h"

namespace cedar::apps {

/// All of it. Errors: not_found, io_error (a directory among them), naming the file.
Result<std::string> read_text(const std::string& path);

/// One line after another, however long the file is. Not thread-safe.
class LineReader {
 public:
  /// Errors: as read_text.
  static Result<LineReader> open(const std::string& path);
  ~LineReader();
  LineReader(LineReader&& other) noexcept;
  LineReader& operator=(LineReader&&) = delete;

  /// Without its line feed; nothing at the end. Errors: io_error.
  Result<std::optional<std::string>> next();

 private:
  LineReader(int descriptor, bool owned, std::string name)
      : descriptor_(descriptor), owned_(owned), name_(std::move(name)) {}

  int descriptor_;
  bool owned_;
  std::string name_;
  std::string buffer_;
  size_t begin_ = 0;  // of what next() has not returned yet
  bool ended_ = false;
};

}  // namespace cedar::apps
