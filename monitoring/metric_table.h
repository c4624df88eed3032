#pragma once
// The one table of metrics. A name is never reused with another meaning, and buckets stay as they are; a rename keeps the old
// name beside the new one for a release. docs/metrics.md is written from it.
//
// A family belongs to a role, and only a process that has the role exports it, once: whatever is summed over instances counts
// every event once. What a gateway knows of its nodes has names of its own (cedar_cluster_*).

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

namespace cedar::monitoring {

enum class MetricType : uint8_t { counter, gauge, histogram };

/// Who exports a family.
enum class Role : uint8_t {
  process,  // everybody
  gateway,  // HTTP, the router and its sessions
  encoder,
  decoder,
  data_plane,  // a node that bytes are fetched from or by
  cache,
  engram_client,  // a stage that takes rows from services
  engram,         // a service of rows
  index_client,   // a stage that may spread its index keys
  indexer,
  count,
};

class RoleSet {
 public:
  constexpr RoleSet() = default;
  constexpr RoleSet(std::initializer_list<Role> roles) {
    for (const Role role : roles) add(role);
  }
  static constexpr RoleSet all() {
    RoleSet set;
    set.bits_ = (1u << static_cast<unsigned>(Role::count)) - 1;
    return set;
  }
  constexpr void add(Role role) { bits_ |= 1u << static_cast<unsigned>(role); }
  constexpr bool has(Role role) const { return (bits_ >> static_cast<unsigned>(role) & 1u) != 0; }

 private:
  uint32_t bits_ = 0;
};

enum class Buckets : uint8_t {
  none,
  requests,  // seconds of a request or a part of one: 1 ms to 10 min
  steps,     // seconds of a step, a chunk or a transfer: 0.1 ms to 10 s
  rows,      // 1 to 8192, powers of two
};

struct MetricLabel {
  std::string_view name;  // empty: there is none
  std::span<const std::string_view> values;
};

/// Index of a row of the table.
enum class MetricId : uint8_t {
  // process
  ready,
  build_info,
  live_actors,
  cpu_seconds,
  resident_bytes,
  virtual_bytes,
  open_fds,
  max_fds,
  start_time,
  // gateway
  http_requests,
  responses,
  prompt_tokens,
  cached_prompt_tokens,
  replayed_prompt_tokens,
  prefix_resumes,
  completion_tokens,
  time_to_first_token,
  inter_token,
  response_seconds,
  connections,
  slow_readers,
  queued_requests,
  running_requests,
  queue_stalled,
  rejections,
  cancellations,
  failures,
  router_mailbox_seconds,
  phase_seconds,
  stage_replacements,
  cache_questions,
  cluster_nodes,
  cluster_refused,
  cluster_encoder_requests,
  cluster_encoder_queued_tokens,
  cluster_encoder_free_blocks,
  cluster_decoder_sequences,
  cluster_decoder_free_blocks,
  cluster_decoder_blocks,
  cluster_decoder_used,
  cluster_engram_rows,
  cluster_engram_failed,
  // encoder
  encoder_requests,
  encoder_queued_tokens,
  encoder_free_blocks,
  encoder_blocks,
  encoder_mailbox_seconds,
  encoder_chunk_seconds,
  encoder_chunk_rows,
  encoder_rows,
  encoder_cached_blocks,
  encoder_prompts,
  encoder_step_failures,
  // decoder
  decoder_sequences,
  decoder_free_blocks,
  decoder_blocks,
  decoder_staging_slots,
  decoder_mailbox_seconds,
  decoder_step_seconds,
  decoder_step_rows,
  decoder_tokens,
  decoder_replayed_rows,
  decoder_sequences_ended,
  decoder_step_failures,
  // data plane
  transfer_seconds,
  transfer_bytes,
  pulls,
  pulls_unfinished,
  pulled_bytes,
  served_bytes,
  requests_refused,
  leases,
  leases_ended,
  peers,
  peers_lost,
  forced_closes,
  handshakes_refused,
  stale_generations,
  bad_messages,
  calls,
  calls_unanswered,
  calls_served,
  // cache
  cache_blocks,
  cache_bytes,
  cache_capacity,
  cache_pinned_blocks,
  cache_leases,
  cache_lookups,
  cache_hit_blocks,
  cache_stored_blocks,
  cache_dropped_blocks,
  cache_evicted_blocks,
  cache_disk_blocks,
  cache_disk_bytes,
  cache_disk_capacity,
  cache_disk_written_blocks,
  cache_disk_dropped_blocks,
  cache_disk_errors,
  cache_windows,
  cache_window_bytes,
  cache_window_capacity,
  cache_window_lookups,
  cache_window_hits,
  cache_windows_ended,
  // Engram
  engram_rows,
  engram_prefetched_rows,
  engram_unused_rows,
  engram_failed_fetches,
  engram_wait_seconds,
  engram_calls,
  engram_service_questions,
  engram_service_rows,
  engram_service_seconds,
  // indexers
  index_scans,
  index_calls,
  index_appended_blocks,
  index_failed_appends,
  index_spread_blocks,
  index_holders,
  index_failed_holders,
  indexer_bytes,
  indexer_capacity,
  indexer_parts,
  indexer_blocks,
  indexer_appends,
  indexer_scans,
  indexer_scanned_rows,
  indexer_refused,
  indexer_expired_parts,
  count,
};

struct MetricRow {
  MetricId id;
  Role role;
  MetricType type;
  std::string_view name;
  std::string_view unit;
  std::string_view help;
  std::array<MetricLabel, 2> labels{};
  Buckets buckets = Buckets::none;
  /// Series that appear when they are first counted, because most of the combinations never do.
  bool sparse = false;

  /// Combinations of label values.
  size_t series() const;
};

std::span<const MetricRow> metric_table();
const MetricRow& metric_row(MetricId id);
std::string_view to_string(MetricType type);
/// Upper bounds, ascending, without the infinite one.
std::span<const double> bounds(Buckets buckets);

}  // namespace cedar::monitoring
