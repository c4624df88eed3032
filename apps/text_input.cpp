#include "apps/text_input.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/text_file.h"

namespace cedar::apps {
namespace {

constexpr const char* kStandardInput = "standard input";
constexpr size_t kReadBytes = 1 << 16;

}  // namespace

Result<std::string> read_text(const std::string& path) {
  if (path == "-") return read_all(STDIN_FILENO, kStandardInput);
  return read_text_file(path, FileKind::any);
}

Result<LineReader> LineReader::open(const std::string& path) {
  if (path == "-") return LineReader(STDIN_FILENO, false, kStandardInput);
  CEDAR_TRY(const int descriptor, open_file(path, FileKind::any));
  return LineReader(descriptor, true, path);
}

LineReader::LineReader(LineReader&& other) noexcept
    : descriptor_(other.descriptor_),
      owned_(std::exchange(other.owned_, false)),
      name_(std::move(other.name_)),
      buffer_(std::move(other.buffer_)),
      begin_(other.begin_),
      ended_(other.ended_) {}

LineReader::~LineReader() {
  if (owned_) ::close(descriptor_);
}

Result<std::optional<std::string>> LineReader::next() {
  size_t searched = begin_;
  while (true) {
    const size_t feed = buffer_.find('\n', searched);
    if (feed != std::string::npos) {
      std::string line = buffer_.substr(begin_, feed - begin_);
      begin_ = feed + 1;
      return std::optional(std::move(line));
    }
    if (ended_) {
      if (begin_ == buffer_.size()) return std::optional<std::string>();
      std::string last = buffer_.substr(begin_);
      begin_ = buffer_.size();
      return std::optional(std::move(last));
    }
    buffer_.erase(0, std::exchange(begin_, 0));
    searched = buffer_.size();
    buffer_.resize(searched + kReadBytes);
    const ssize_t count = ::read(descriptor_, buffer_.data() + searched, kReadBytes);
    const int problem = errno;
    buffer_.resize(searched + static_cast<size_t>(count > 0 ? count : 0));
    if (count == 0) ended_ = true;
    if (count < 0 && problem != EINTR) return file_error(name_, problem);
  }
}

}  // namespace cedar::apps
