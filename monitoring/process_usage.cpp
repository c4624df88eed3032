#include "monitoring/process_usage.h"

#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

#include "monitoring/metrics.h"

namespace cedar::monitoring {
namespace {

/// The fields of /proc/self/stat from the third on: the second one is a name that may contain anything.
std::istringstream stat_fields() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  return std::istringstream(name_end == std::string::npos ? std::string()
                                                          : line.substr(name_end + 1));
}

double boot_time() {
  std::ifstream file("/proc/stat");
  std::string word;
  double seconds = 0;
  while (file >> word) {
    if (word == "btime" && file >> seconds) return seconds;
  }
  return 0;
}

void report_stat(Metrics& metrics) {
  std::istringstream fields = stat_fields();
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
  std::string skipped;
  double start = 0, size = 0, resident = 0;
  for (int i = 3; i < 22; ++i) fields >> skipped;
  fields >> start >> size >> resident;
  if (!fields) return;
  metrics.set(MetricId::virtual_bytes, size);
  metrics.set(MetricId::resident_bytes, resident * page);
  metrics.set(MetricId::start_time, boot_time() + start / ticks);
}

void report_processor(Metrics& metrics) {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  metrics.raise(MetricId::cpu_seconds, seconds(usage.ru_utime) + seconds(usage.ru_stime));
}

void report_files(Metrics& metrics) {
  std::error_code error;
  int64_t open = -1;  // the iterator's own
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end;
       at.increment(error)) {
    ++open;
  }
  if (!error) metrics.set(MetricId::open_fds, static_cast<double>(open));
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    metrics.set(MetricId::max_fds, static_cast<double>(limit.rlim_cur));
  }
}

}  // namespace

void report_process(Metrics& metrics) {
  report_processor(metrics);
  report_stat(metrics);
  report_files(metrics);
}

}  // namespace cedar::monitoring
