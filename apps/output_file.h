#pragma once
// Where results go: standard output, or a file that appears under its name once it is whole.

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "core/result.h"

namespace cedar::apps {

/// True when both names lead to one regular file; "-" is standard input or standard output. Writing such an
/// output would destroy the input, or feed on itself.
bool same_file(const std::string& input, const std::string& output);

/// A regular file is written as NAME.partial and renamed by commit(); without commit() it stays there, unless it is
/// empty. Pipes, devices and standard output ("-") are written directly.
class OutputFile {
 public:
  /// Errors: not_found (the folder), io_error, naming the file.
  static Result<OutputFile> open(const std::string& path);
  ~OutputFile();
  OutputFile(OutputFile&&) = default;
  OutputFile& operator=(OutputFile&&) = delete;

  void write(std::string_view text);
  void flush();
  /// False after a write that failed.
  bool ok() const { return problem_ == 0; }
  /// Ends the output. Errors: io_error naming the file; also of an earlier write.
  Status commit();

 private:
  OutputFile(std::string path, std::string partial, std::FILE* file)
      : path_(std::move(path)), partial_(std::move(partial)), file_(file, &std::fclose) {}
  std::FILE* file() const { return file_ ? file_.get() : stdout; }

  std::string path_;
  std::string partial_;  // empty: written directly
  bool empty_ = true;
  int problem_ = 0;  // errno of the first write that failed
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace cedar::apps
