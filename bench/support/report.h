#pragma once
// What the measurements share: the file with their figures, percentiles.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/output_file.h"
#include "core/result.h"

namespace cedar::bench {

/// The file of --json. Opened before the minutes of measuring, so that a name that cannot be written is known at once;
/// what is there already stays until the new figures are whole.
class ReportFile {
 public:
  /// An empty path: nobody asked for it, and write() does nothing. Errors: not_found, io_error, naming the file.
  static Result<ReportFile> open(const std::string& path);
  /// Errors: io_error naming the file.
  Status write(const nlohmann::ordered_json& report);

 private:
  std::optional<apps::OutputFile> file_;
};

/// The words of a command line in one line, for the report.
std::string command_text(const char* program, int argc, char** argv);

/// Now, as 2026-11-30T12:00:00Z.
std::string utc_date();

/// The value that a share `q` of the values does not exceed (nearest rank); 0 when there are none.
/// REQUIRES: `sorted` is in ascending order, 0 <= q <= 1.
double percentile(const std::vector<double>& sorted, double q);

}  // namespace cedar::bench
