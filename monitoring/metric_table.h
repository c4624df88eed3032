#pragma once
// The one table of metric names. A name is never reused with another meaning; a rename keeps the old name
// beside the new one for a release.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cedar::monitoring {

enum class MetricType : uint8_t { counter, gauge, histogram };

struct MetricRow {
  std::string_view name;
  MetricType type;
  std::string_view help;
  std::string_view labels;  // comma-separated; every label has a small, fixed set of values
};

/// Index of a row of the table.
enum class MetricId : uint8_t {
  http_requests,
  responses,
  prompt_tokens,
  completion_tokens,
  time_to_first_token,
  inter_token,
  connections,
  slow_readers,
  queued_requests,
  running_requests,
  live_actors,
  encoder_requests,
  encoder_queued_tokens,
  encoder_free_blocks,
  decoder_sequences,
  decoder_free_blocks,
  decoder_total_blocks,
  engram_rows,
  engram_failed_fetches,
  ready,
  count,
};

std::span<const MetricRow> metric_table();
const MetricRow& metric_row(MetricId id);

}  // namespace cedar::monitoring
