#include "bench/support/report.h"

#include <algorithm>
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

}  // namespace cedar::bench
