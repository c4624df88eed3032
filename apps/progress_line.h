#pragma once
// How far a long piece of work is.

#include <cstdint>
#include <string>

namespace cedar::apps {

/// One line on a terminal's standard error, written over again and again, at most five times a second.
class ProgressLine {
 public:
  explicit ProgressLine(std::string title);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// `unit`: what is counted, in the plural.
  void show(int64_t done, int64_t total, const char* unit);
  void clear();

 private:
  std::string title_;
  bool on_;
  bool shown_ = false;
  int64_t next_ns_ = 0;
};

}  // namespace cedar::apps
