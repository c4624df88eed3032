#include "apps/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace cedar::apps {
namespace {

constexpr const char* kPartial = ".partial";

bool regular(const std::string& path, int standard, struct stat& info) {
  const int status = path == "-" ? ::fstat(standard, &info) : ::stat(path.c_str(), &info);
  return status == 0 && S_ISREG(info.st_mode);
}

Error cannot_write(const std::string& path, int code) {
  return make_error(Errc::io_error,
                    "cannot write " + path + ": " + std::generic_category().message(code));
}

/// The file behind a link: renaming over the link would cut it off.
std::string link_target(const std::string& path) {
  std::error_code error;
  const auto target = std::filesystem::canonical(path, error);
  return error ? path : target.string();
}

}  // namespace

bool same_file(const std::string& input, const std::string& output) {
  struct stat in = {};
  if (!regular(input, STDIN_FILENO, in)) return false;
  for (const std::string& name : {output, output + kPartial}) {
    struct stat out = {};
    if (regular(name, STDOUT_FILENO, out) && in.st_dev == out.st_dev && in.st_ino == out.st_ino) {
      return true;
    }
  }
  return false;
}

Result<OutputFile> OutputFile::open(const std::string& path) {
  if (path == "-") return OutputFile("standard output", {}, nullptr);
  struct stat info = {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  const bool direct = exists && !S_ISREG(info.st_mode);
  const std::string target = link_target(path);
  const std::string name = direct ? target : target + kPartial;
  const int descriptor =
      ::open(name.c_str(), O_WRONLY | O_CLOEXEC | (direct ? 0 : O_CREAT | O_TRUNC), 0666);
  if (descriptor < 0) return cannot_write(name, errno);
  if (exists && !direct && ::fchmod(descriptor, info.st_mode & 07777) != 0) {
    const int problem = errno;
    ::close(descriptor);
    return cannot_write(name, problem);
  }
  std::FILE* file = ::fdopen(descriptor, "wb");
  if (file == nullptr) {
    const int problem = errno;
    ::close(descriptor);
    return cannot_write(name, problem);
  }
  return OutputFile(target, direct ? std::string() : name, file);
}

OutputFile::~OutputFile() {
  if (file_ && !partial_.empty() && empty_) ::unlink(partial_.c_str());
}

void OutputFile::write(std::string_view text) {
  empty_ = empty_ && text.empty();
  if (std::fwrite(text.data(), 1, text.size(), file()) != text.size() && ok()) problem_ = errno;
}

void OutputFile::flush() {
  if (std::fflush(file()) != 0 && ok()) problem_ = errno;
}

Status OutputFile::commit() {
  flush();
  if (!ok()) return cannot_write(partial_.empty() ? path_ : partial_, problem_);
  if (!file_) return {};
  if (std::fclose(file_.release()) != 0) return cannot_write(path_, errno);
  if (partial_.empty()) return {};
  if (::rename(partial_.c_str(), path_.c_str()) != 0) return cannot_write(path_, errno);
  return {};
}

}  // namespace cedar::apps
