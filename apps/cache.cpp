// `cedar cache`: looks at the SSD tier's directory, checks it, and makes room.

#include <CLI/CLI.hpp>

#include <cstdio>
#include <ctime>
#include <iostream>
#include <string>

#include "apps/commands.h"
#include "apps/options.h"
#include "apps/progress_line.h"
#include "apps/text_table.h"
#include "storage/segment_inspect.h"

namespace cedar::apps {
namespace {

int fail(const Error& error) {
  std::fprintf(stderr, "cedar cache: %s\n", error.message().c_str());
  return 1;
}

std::string time_text(uint64_t unix_seconds) {
  const auto time = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

int list(const std::string& directory) {
  const auto segments = storage::list_segments(directory);
  if (!segments) return fail(segments.error());
  TextTable table({"segment", "bytes", "values", "of", "oldest (UTC)", "newest (UTC)", "state"});
  for (const storage::SegmentSummary& s : *segments) {
    if (s.problem) {
      table.add({file_name(s.path), with_commas(s.file_bytes), "-", "-", "-", "-",
                 "unusable: " + *s.problem});
      continue;
    }
    table.add({file_name(s.path), with_commas(s.file_bytes), with_commas(s.values),
               with_commas(s.header.shape.slots), time_text(s.oldest_s), time_text(s.newest_s),
               s.finished ? "finished" : "open"});
  }
  table.print(std::cout);
  return 0;
}

int stat(const std::string& directory) {
  const auto segments = storage::list_segments(directory);
  if (!segments) return fail(segments.error());
  int64_t bytes = 0, values = 0, value_bytes = 0, unusable = 0, torn = 0;
  uint64_t oldest = 0, newest = 0;
  for (const storage::SegmentSummary& s : *segments) {
    bytes += s.file_bytes;
    unusable += s.problem ? 1 : 0;
    if (s.problem) continue;
    values += s.values;
    value_bytes += s.values * s.header.shape.value_bytes;
    torn += s.torn;
    if (s.values == 0) continue;
    oldest = oldest == 0 ? s.oldest_s : std::min(oldest, s.oldest_s);
    newest = std::max(newest, s.newest_s);
  }
  std::printf("segments      %s (%s unusable)\n",
              with_commas(static_cast<int64_t>(segments->size())).c_str(),
              with_commas(unusable).c_str());
  std::printf("bytes         %s on disk, %s of values\n", with_commas(bytes).c_str(),
              with_commas(value_bytes).c_str());
  std::printf("values        %s (%s torn slots)\n", with_commas(values).c_str(),
              with_commas(torn).c_str());
  if (values > 0) {
    std::printf("written       %s to %s UTC\n", time_text(oldest).c_str(),
                time_text(newest).c_str());
  }
  if (!segments->empty() && !segments->back().problem) {
    std::printf("of            %s\n", segments->back().header.identity.c_str());
  }
  return 0;
}

int verify(const std::string& directory) {
  ProgressLine line("verifying");
  const auto report = storage::verify_segments(directory, [&line](int64_t done, int64_t total) {
    line.show(done, total, "segments");
    return true;
  });
  line.clear();
  if (!report) return fail(report.error());
  for (const std::string& finding : report->findings) std::printf("%s\n", finding.c_str());
  std::printf("%s values, %s bytes: %s corrupt, %s torn slots, %s unusable segments\n",
              with_commas(report->values).c_str(), with_commas(report->bytes).c_str(),
              with_commas(report->corrupt).c_str(), with_commas(report->torn).c_str(),
              with_commas(report->unusable).c_str());
  return report->corrupt == 0 && report->unusable == 0 ? 0 : 1;
}

int collect(const std::string& directory, const storage::CollectOptions& options) {
  const auto report = storage::collect_segments(directory, options);
  if (!report) return fail(report.error());
  for (const std::string& path : report->removed) {
    std::printf("%s %s\n", options.dry_run ? "would remove" : "removed", file_name(path).c_str());
  }
  std::printf("%s bytes %s, %s kept\n", with_commas(report->freed_bytes).c_str(),
              options.dry_run ? "would be freed" : "freed",
              with_commas(report->kept_bytes).c_str());
  return 0;
}

}  // namespace

int run_cache(int argc, char** argv) {
  CLI::App app("The SSD tier of the KV cache, from outside.", "cedar cache");
  app.require_subcommand(1);
  std::string directory;
  const auto add = [&](const char* name, const char* what) {
    CLI::App* const command = app.add_subcommand(name, what);
    command->add_option("DIR", directory, "the directory with the segment files")->required();
    return command;
  };
  const CLI::App* const ls = add("ls", "every segment: values, ages, state");
  const CLI::App* const stats = add("stat", "sums");
  const CLI::App* const check = add("verify", "reads every value; status 1 if one is damaged");
  CLI::App* const gc = add("gc", "removes what cannot be used, and what the options say");
  std::optional<int64_t> max_mib, older_than_h;
  storage::CollectOptions options;
  gc->add_option("--max-mib", max_mib, "removes the oldest segments until the rest fits")
      ->check(integer_in(0, int64_t{1} << 40));
  gc->add_option("--older-than-hours", older_than_h, "removes segments with nothing younger")
      ->check(integer_in(0, 1'000'000));
  gc->add_flag("--dry-run", options.dry_run, "only says what it would remove");
  if (const auto status = parse_options(app, argc, argv)) return *status;
  if (ls->parsed()) return list(directory);
  if (stats->parsed()) return stat(directory);
  if (check->parsed()) return verify(directory);
  if (max_mib) options.max_bytes = *max_mib << 20;
  if (older_than_h) options.older_than_s = static_cast<uint64_t>(*older_than_h) * 3600;
  return collect(directory, options);
}

}  // namespace cedar::apps
