#include "bench/support/report.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <utility>

namespace cedar::bench {

Result<ReportFile> ReportFile::open(const std::string& path) {
  ReportFile report;
  if (path.empty()) return report;
  CEDAR_TRY(auto file, apps::OutputFile::open(path));
  report.file_.emplace(std::move(file));
  return report;
}

Status ReportFile::write(const nlohmann::ordered_json& report) {
  if (!file_) return {};
  file_->write(report.dump(1));
  file_->write("\n");
  return file_->commit();
}

std::string command_text(const char* program, int argc, char** argv) {
  std::string text = program;
  for (int i = 0; i < argc; ++i) text.append(1, ' ').append(argv[i]);
  return text;
}

std::string utc_date() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  return text;
}

double percentile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const auto rank = std::ceil(q * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

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

}  // namespace cedar::bench
