#include "apps/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

namespace cedar::apps {

ProgressLine::ProgressLine(std::string title)
    : title_(std::move(title)), on_(isatty(STDERR_FILENO) == 1) {}

void ProgressLine::show(int64_t done, int64_t total, const char* unit) {
  constexpr int kWidth = 30;
  constexpr int64_t kIntervalNs = 200'000'000;
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  if (!on_ || now < next_ns_) return;
  next_ns_ = now + kIntervalNs;
  shown_ = true;
  const int filled = total > 0 ? static_cast<int>(kWidth * std::min(done, total) / total) : 0;
  const std::string bar = std::string(static_cast<size_t>(filled), '#') +
                          std::string(static_cast<size_t>(kWidth - filled), '.');
  std::fprintf(stderr, "\r\033[K%s [%s] %lld of %lld %s", title_.c_str(), bar.c_str(),
               static_cast<long long>(done), static_cast<long long>(total), unit);
}

void ProgressLine::clear() {
  if (std::exchange(shown_, false)) std::fputs("\r\033[K", stderr);
}

}  // namespace cedar::apps
