#pragma once
// Looking at a store's directory from outside, and putting it right: what `cedar cache` does.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "storage/segment_file.h"

namespace cedar::storage {

struct SegmentSummary {
  std::string path;
  int64_t file_bytes = 0;
  std::optional<std::string> problem;  // why it cannot be used; then nothing below is known
  SegmentHeader header;
  int64_t values = 0;
  bool finished = false;
  uint64_t oldest_s = 0, newest_s = 0;  // Unix time of its values
  int64_t torn = 0;
};

/// Every segment, oldest first; a store may be at work there. Errors: not_found (no such directory).
Result<std::vector<SegmentSummary>> list_segments(const std::string& directory);

struct VerifyReport {
  int64_t values = 0;
  int64_t bytes = 0;
  int64_t corrupt = 0;                // values
  int64_t torn = 0;                   // slots
  int64_t unusable = 0;               // segments
  std::vector<std::string> findings;  // the first kMaxFindings of them
  static constexpr size_t kMaxFindings = 20;
};
/// Reads every value. `progress` gets (segments done, in all); false stops. Errors: not_found, cancelled.
Result<VerifyReport> verify_segments(const std::string& directory,
                                     const std::function<bool(int64_t, int64_t)>& progress);

struct CollectOptions {
  std::optional<int64_t> max_bytes;      // removes the oldest segments until the rest fits
  std::optional<uint64_t> older_than_s;  // removes segments whose newest value is older; seconds
  bool dry_run = false;
};
struct CollectReport {
  std::vector<std::string> removed;
  int64_t freed_bytes = 0;
  int64_t kept_bytes = 0;
};
/// Removes segments that cannot be used, and what the options say. Errors: not_found, unavailable (a store is at work there).
Result<CollectReport> collect_segments(const std::string& directory, const CollectOptions& options);

}  // namespace cedar::storage
