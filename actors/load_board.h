#pragma once
// What the actors of one process are doing, readable without asking them. Each value has one writer.

#include <atomic>
#include <chrono>
#include <cstdint>

#include "actors/engram_counts.h"

namespace cedar::actors {

struct LoadBoard {
  // router
  std::atomic<bool> ready{false};
  std::atomic<int64_t> queued{0};
  std::atomic<int64_t> running{0};
  /// Since when requests have waited without one of them being let in; the clock's zero: none waits.
  std::atomic<std::chrono::steady_clock::time_point> stalled_since{};
  // encoder stage
  std::atomic<int64_t> encoder_requests{0};
  std::atomic<int64_t> encoder_queued_tokens{0};
  std::atomic<int64_t> encoder_free_blocks{0};
  std::atomic<int64_t> encoder_total_blocks{0};
  // decoder stage
  std::atomic<int64_t> decoder_sequences{0};
  std::atomic<int64_t> decoder_free_blocks{0};
  std::atomic<int64_t> decoder_total_blocks{0};
  std::atomic<int64_t> decoder_staging_slots{0};  // being written to, or not known to be finished
  // the source of Engram rows of both stages; at a gateway the router, over all stages
  std::atomic<int64_t> engram_hits{0};
  std::atomic<int64_t> engram_ahead{0};
  std::atomic<int64_t> engram_late{0};
  std::atomic<int64_t> engram_misses{0};
  std::atomic<int64_t> engram_failed_fetches{0};

  EngramCounts engram() const {
    return {engram_hits, engram_ahead, engram_late, engram_misses, engram_failed_fetches};
  }
  void set_engram(const EngramCounts& counts) {
    engram_hits = counts.hits;
    engram_ahead = counts.ahead;
    engram_late = counts.late;
    engram_misses = counts.misses;
    engram_failed_fetches = counts.failed_fetches;
  }
  // KV cache: CacheUsage in messages.h says what they mean
  std::atomic<int64_t> cache_blocks{0};
  std::atomic<int64_t> cache_bytes{0};
  std::atomic<int64_t> cache_capacity_bytes{0};
  std::atomic<int64_t> cache_pinned_blocks{0};
  std::atomic<int64_t> cache_leases{0};
  std::atomic<int64_t> cache_lookups{0};
  std::atomic<int64_t> cache_hit_blocks{0};
  std::atomic<int64_t> cache_stored_blocks{0};
  std::atomic<int64_t> cache_dropped_blocks{0};
  std::atomic<int64_t> cache_evicted_blocks{0};
  std::atomic<int64_t> cache_disk_blocks{0};
  std::atomic<int64_t> cache_disk_bytes{0};
  std::atomic<int64_t> cache_disk_capacity_bytes{0};  // 0: there is none, or it cannot be had now
  std::atomic<int64_t> cache_disk_hit_blocks{0};
  std::atomic<int64_t> cache_disk_written_blocks{0};
  std::atomic<int64_t> cache_disk_dropped_blocks{0};
  std::atomic<int64_t> cache_disk_errors{0};
  std::atomic<int64_t> cache_windows{0};
  std::atomic<int64_t> cache_window_bytes{0};
  std::atomic<int64_t> cache_window_capacity_bytes{0};
  std::atomic<int64_t> cache_window_lookups{0};
  std::atomic<int64_t> cache_window_hits{0};
  std::atomic<int64_t> cache_windows_expired{0};
  std::atomic<int64_t> cache_windows_evicted{0};
};

}  // namespace cedar::actors
