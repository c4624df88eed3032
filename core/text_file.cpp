#include "core/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <vector>

namespace cedar {

Error file_error(const std::string& path, int code) {
  return make_error(code == ENOENT || code == ENOTDIR ? Errc::not_found : Errc::io_error,
                    path + ": " + std::generic_category().message(code));
}

Result<int> open_file(const std::string& path, FileKind kind) {
  const bool regular = kind == FileKind::regular;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | (regular ? O_NONBLOCK : 0));
  if (descriptor < 0) return file_error(path, errno);
  struct stat info = {};
  int problem = ::fstat(descriptor, &info) == 0 ? 0 : errno;
  if (problem == 0 && S_ISDIR(info.st_mode)) problem = EISDIR;
  if (problem == 0 && (!regular || S_ISREG(info.st_mode))) return descriptor;
  ::close(descriptor);
  if (problem != 0) return file_error(path, problem);
  return make_error(Errc::io_error, path + ": is not a regular file");
}

Result<std::string> read_all(int descriptor, const std::string& name) {
  std::string text;
  std::vector<char> chunk(1 << 16);
  while (true) {
    const ssize_t count = ::read(descriptor, chunk.data(), chunk.size());
    if (count == 0) return text;
    if (count > 0) {
      text.append(chunk.data(), static_cast<size_t>(count));
    } else if (errno != EINTR) {
      return file_error(name, errno);
    }
  }
}

Result<std::string> read_text_file(const std::string& path, FileKind kind) {
  CEDAR_TRY(const int descriptor, open_file(path, kind));
  auto text = read_all(descriptor, path);
  ::close(descriptor);
  return text;
}

}  // namespace cedar
