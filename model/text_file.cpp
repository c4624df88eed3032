#include "model/text_file.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

namespace cedar::model {

Error file_error(const std::string& path, int code) {
  return make_error(code == ENOENT || code == ENOTDIR ? Errc::not_found : Errc::io_error,
                    path + ": " + std::generic_category().message(code));
}

Result<std::string> read_text_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             &std::fclose);
  if (!file) return file_error(path, errno);
  std::string text;
  std::array<char, 1 << 16> chunk;
  while (const size_t count = std::fread(chunk.data(), 1, chunk.size(), file.get())) {
    text.append(chunk.data(), count);
  }
  if (std::ferror(file.get()) != 0) return file_error(path, errno);
  return text;
}

}  // namespace cedar::model
