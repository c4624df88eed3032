#include "actors/board_metrics.h"

#include <array>
#include <utility>

namespace cedar::actors {
namespace {

using monitoring::MetricId;
using monitoring::Metrics;

using Value = std::atomic<int64_t> LoadBoard::*;

struct Gauge {
  MetricId id;
  Value value;
};

constexpr Gauge kGauges[] = {
    {MetricId::encoder_requests, &LoadBoard::encoder_requests},
    {MetricId::encoder_queued_tokens, &LoadBoard::encoder_queued_tokens},
    {MetricId::encoder_free_blocks, &LoadBoard::encoder_free_blocks},
    {MetricId::encoder_blocks, &LoadBoard::encoder_total_blocks},
    {MetricId::decoder_sequences, &LoadBoard::decoder_sequences},
    {MetricId::decoder_free_blocks, &LoadBoard::decoder_free_blocks},
    {MetricId::decoder_blocks, &LoadBoard::decoder_total_blocks},
    {MetricId::decoder_staging_slots, &LoadBoard::decoder_staging_slots},
    {MetricId::cache_blocks, &LoadBoard::cache_blocks},
    {MetricId::cache_bytes, &LoadBoard::cache_bytes},
    {MetricId::cache_capacity, &LoadBoard::cache_capacity_bytes},
    {MetricId::cache_pinned_blocks, &LoadBoard::cache_pinned_blocks},
    {MetricId::cache_leases, &LoadBoard::cache_leases},
    {MetricId::cache_disk_blocks, &LoadBoard::cache_disk_blocks},
    {MetricId::cache_disk_bytes, &LoadBoard::cache_disk_bytes},
    {MetricId::cache_disk_capacity, &LoadBoard::cache_disk_capacity_bytes},
    {MetricId::cache_windows, &LoadBoard::cache_windows},
    {MetricId::cache_window_bytes, &LoadBoard::cache_window_bytes},
    {MetricId::cache_window_capacity, &LoadBoard::cache_window_capacity_bytes},
};

struct Counter {
  MetricId id;
  size_t label;  // its value, where the family has one
  Value value;
  int without = -1;  // index of a counter that is part of this one and has a series of its own
};

constexpr size_t at(monitoring::Tier tier) { return static_cast<size_t>(tier); }
constexpr size_t at(monitoring::WindowEnd end) { return static_cast<size_t>(end); }

constexpr Counter kCounters[] = {
    {MetricId::cache_lookups, 0, &LoadBoard::cache_lookups},
    {MetricId::cache_hit_blocks, at(monitoring::Tier::memory), &LoadBoard::cache_hit_blocks, 2},
    {MetricId::cache_hit_blocks, at(monitoring::Tier::disk), &LoadBoard::cache_disk_hit_blocks},
    {MetricId::cache_stored_blocks, 0, &LoadBoard::cache_stored_blocks},
    {MetricId::cache_dropped_blocks, 0, &LoadBoard::cache_dropped_blocks},
    {MetricId::cache_evicted_blocks, 0, &LoadBoard::cache_evicted_blocks},
    {MetricId::cache_disk_written_blocks, 0, &LoadBoard::cache_disk_written_blocks},
    {MetricId::cache_disk_dropped_blocks, 0, &LoadBoard::cache_disk_dropped_blocks},
    {MetricId::cache_disk_errors, 0, &LoadBoard::cache_disk_errors},
    {MetricId::cache_window_lookups, 0, &LoadBoard::cache_window_lookups},
    {MetricId::cache_window_hits, 0, &LoadBoard::cache_window_hits},
    {MetricId::cache_windows_ended, at(monitoring::WindowEnd::expired),
     &LoadBoard::cache_windows_expired},
    {MetricId::cache_windows_ended, at(monitoring::WindowEnd::evicted),
     &LoadBoard::cache_windows_evicted},
};

static_assert(kCounters[2].value == &LoadBoard::cache_disk_hit_blocks);

/// A cache that begins again in this process counts from nothing, and what its former life counted stays.
class Follower {
 public:
  void follow(const LoadBoard& board, Metrics& metrics) {
    for (size_t i = 0; i < std::size(kCounters); ++i) {
      const int64_t now = (board.*kCounters[i].value).load();
      const int64_t before = std::exchange(seen_[i], now);
      totals_[i] += now >= before ? now - before : now;
    }
    for (size_t i = 0; i < std::size(kCounters); ++i) {
      const Counter& counter = kCounters[i];
      const int64_t without =
          counter.without < 0 ? 0 : totals_[static_cast<size_t>(counter.without)];
      metrics.raise(counter.id, static_cast<Label>(counter.label),
                    static_cast<double>(totals_[i] - without));
    }
  }

 private:
  enum class Label : size_t {};
  std::array<int64_t, std::size(kCounters)> seen_{}, totals_{};
};

}  // namespace

std::shared_ptr<void> report_board(std::shared_ptr<const LoadBoard> board, Metrics& metrics) {
  return metrics.collect([board = std::move(board), counters = Follower()](Metrics& to) mutable {
    for (const Gauge& gauge : kGauges) {
      to.set(gauge.id, static_cast<double>(((*board).*gauge.value).load()));
    }
    counters.follow(*board, to);
  });
}

}  // namespace cedar::actors
