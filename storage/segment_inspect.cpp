#include "storage/segment_inspect.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <system_error>

namespace cedar::storage {
namespace {

Status check_directory(const std::string& directory) {
  std::error_code ignored;
  if (std::filesystem::is_directory(directory, ignored)) return {};
  return make_error(Errc::not_found, "no directory " + directory);
}

/// A store that works lets segments go, also between a look at the directory and one at the file.
bool is_gone(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() ==
         std::filesystem::file_type::not_found;
}

SegmentSummary summarise(const std::string& path) {
  SegmentSummary summary;
  summary.path = path;
  std::error_code none;  // a directory has no size, nor has a link that leads nowhere
  const auto bytes = std::filesystem::file_size(path, none);
  summary.file_bytes = none ? 0 : static_cast<int64_t>(bytes);
  const auto file = SegmentFile::open(path, false);
  if (!file) {
    summary.problem = file.error().context;
    return summary;
  }
  const auto contents = (*file)->read_headers();
  if (!contents) {
    summary.problem = contents.error().context;
    return summary;
  }
  summary.header = (*file)->header();
  summary.finished = contents->finished;
  summary.torn = contents->torn;
  summary.oldest_s = std::numeric_limits<uint64_t>::max();
  for (const SlotHeader& slot : contents->slots) {
    if (slot.key == StoreKey{}) continue;
    ++summary.values;
    summary.oldest_s = std::min(summary.oldest_s, slot.written_s);
    summary.newest_s = std::max(summary.newest_s, slot.written_s);
  }
  if (summary.values == 0) summary.oldest_s = summary.newest_s = summary.header.created_s;
  return summary;
}

}  // namespace

Result<std::vector<SegmentSummary>> list_segments(const std::string& directory) {
  CEDAR_CHECK_OK(check_directory(directory));
  std::vector<SegmentSummary> segments;
  for (const std::string& path : segment_paths(directory)) {
    SegmentSummary summary = summarise(path);
    if (!summary.problem || !is_gone(path)) segments.push_back(std::move(summary));
  }
  return segments;
}

Result<VerifyReport> verify_segments(const std::string& directory,
                                     const std::function<bool(int64_t, int64_t)>& progress) {
  CEDAR_CHECK_OK(check_directory(directory));
  const auto paths = segment_paths(directory);
  VerifyReport report;
  const auto find = [&report](std::string what) {
    if (report.findings.size() < VerifyReport::kMaxFindings) {
      report.findings.push_back(std::move(what));
    }
  };
  int64_t done = 0;
  for (const std::string& path : paths) {
    if (progress && !progress(done, static_cast<int64_t>(paths.size()))) {
      return make_error(Errc::cancelled, "stopped after " + std::to_string(done) + " segments");
    }
    ++done;
    const auto file = SegmentFile::open(path, false);
    if (!file && is_gone(path)) continue;
    if (!file) {
      ++report.unusable;
      find(file.error().context);
      continue;
    }
    const auto contents = (*file)->read_headers();
    if (!contents) {
      ++report.unusable;
      find(contents.error().context);
      continue;
    }
    report.torn += contents->torn;
    std::vector<std::byte> value(static_cast<size_t>((*file)->header().shape.value_bytes));
    for (size_t slot = 0; slot < contents->slots.size(); ++slot) {
      const SlotHeader& header = contents->slots[slot];
      if (header.key == StoreKey{}) continue;
      ++report.values;
      report.bytes += static_cast<int64_t>(value.size());
      const Status read = (*file)->read_slot(static_cast<int64_t>(slot), header, value);
      if (read) continue;
      ++report.corrupt;
      find(path + ", slot " + std::to_string(slot) + ": " + read.error().context);
    }
  }
  if (progress) progress(done, static_cast<int64_t>(paths.size()));
  return report;
}

Result<CollectReport> collect_segments(const std::string& directory,
                                       const CollectOptions& options) {
  CEDAR_CHECK_OK(check_directory(directory));
  CEDAR_TRY(const DirectoryLock lock, DirectoryLock::take(directory));
  CEDAR_TRY(const std::vector<SegmentSummary> segments, list_segments(directory));
  const auto now = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(
                                             std::chrono::system_clock::now().time_since_epoch())
                                             .count());
  int64_t left = 0;
  for (const SegmentSummary& segment : segments) left += segment.file_bytes;
  CollectReport report;
  for (const SegmentSummary& segment : segments) {
    const bool unusable = segment.problem.has_value();
    const bool old =
        !unusable && options.older_than_s && segment.newest_s + *options.older_than_s < now;
    const bool too_much = options.max_bytes && left > *options.max_bytes;
    if (!unusable && !old && !too_much) continue;
    std::error_code stays;
    if (!options.dry_run) std::filesystem::remove(segment.path, stays);
    if (stays) continue;
    left -= segment.file_bytes;
    report.freed_bytes += segment.file_bytes;
    report.removed.push_back(segment.path);
  }
  report.kept_bytes = left;
  return report;
}

}  // namespace cedar::storage
