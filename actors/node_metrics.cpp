#include "actors/node_metrics.h"

#include <algorithm>
#include <array>

namespace cedar::actors {

using monitoring::Answer;
using monitoring::EngramFound;
using monitoring::LeaseEnd;
using monitoring::MetricId;
using monitoring::Metrics;
using monitoring::PeerEnd;

namespace {

template <class Count>
double number(Count count) {
  return static_cast<double>(count);
}

void raise_by_code(Metrics& metrics, MetricId id,
                   const std::array<uint64_t, transport::TransportStats::kErrcCount>& counts) {
  for (size_t code = 0; code < counts.size(); ++code) {
    metrics.raise(id, static_cast<Errc>(code), number(counts[code]));
  }
}

}  // namespace

void report(const transport::TransportStats& stats, Metrics& metrics) {
  raise_by_code(metrics, MetricId::pulls, stats.pulls_ended);
  raise_by_code(metrics, MetricId::requests_refused, stats.requests_refused);
  metrics.set(MetricId::pulls_unfinished, number(stats.pulls_unfinished));
  metrics.raise(MetricId::pulled_bytes, number(stats.bytes_pulled));
  metrics.raise(MetricId::served_bytes, number(stats.bytes_served));
  metrics.set(MetricId::leases, number(stats.leases_live));
  metrics.raise(MetricId::leases_ended, LeaseEnd::released, number(stats.leases_released));
  metrics.raise(MetricId::leases_ended, LeaseEnd::expired, number(stats.leases_expired));
  metrics.raise(MetricId::leases_ended, LeaseEnd::revoked, number(stats.leases_revoked));
  metrics.set(MetricId::peers, number(stats.peers_ready));
  metrics.raise(MetricId::peers_lost, PeerEnd::silence, number(stats.peers_silent));
  metrics.raise(MetricId::peers_lost, PeerEnd::error,
                number(stats.peers_lost - std::min(stats.peers_lost, stats.peers_silent)));
  metrics.raise(MetricId::forced_closes, number(stats.forced_closes));
  metrics.raise(MetricId::handshakes_refused, number(stats.handshakes_refused));
  metrics.raise(MetricId::stale_generations, number(stats.stale_generations));
  metrics.raise(MetricId::bad_messages, number(stats.bad_messages));
}

void report(const transport::CallStats& stats, Metrics& metrics) {
  const uint64_t ended = stats.calls - std::min(stats.calls, stats.calls_unanswered);
  metrics.raise(MetricId::calls, Answer::ok, number(ended - std::min(ended, stats.calls_failed)));
  metrics.raise(MetricId::calls, Answer::failed, number(stats.calls_failed));
  metrics.set(MetricId::calls_unanswered, number(stats.calls_unanswered));
  metrics.raise(MetricId::calls_served, number(stats.served));
}

void report(const RemoteEngramStats& stats, Metrics& metrics) {
  metrics.raise(MetricId::engram_rows, EngramFound::cache, number(stats.hits));
  metrics.raise(MetricId::engram_rows, EngramFound::ahead, number(stats.ahead));
  metrics.raise(MetricId::engram_rows, EngramFound::late, number(stats.late));
  metrics.raise(MetricId::engram_rows, EngramFound::missed, number(stats.misses));
  metrics.raise(MetricId::engram_prefetched_rows, number(stats.prefetched));
  metrics.raise(MetricId::engram_unused_rows, number(stats.unused));
  metrics.raise(MetricId::engram_failed_fetches, number(stats.failed_fetches));
  metrics.raise(MetricId::engram_wait_seconds, stats.wait_seconds);
  metrics.raise(MetricId::engram_calls, Answer::failed, number(stats.calls_failed));
  metrics.raise(MetricId::engram_calls, Answer::ok, number(stats.calls - stats.calls_failed));
}

void report(const IndexSpreadStats& stats, Metrics& metrics) {
  metrics.raise(MetricId::index_scans, number(stats.scans));
  metrics.raise(MetricId::index_calls, Answer::failed, number(stats.failed_scan_calls));
  metrics.raise(MetricId::index_calls, Answer::ok,
                number(stats.scan_calls - std::min(stats.scan_calls, stats.failed_scan_calls)));
  metrics.raise(MetricId::index_appended_blocks, number(stats.appended_blocks));
  metrics.raise(MetricId::index_failed_appends, number(stats.failed_append_calls));
  metrics.set(MetricId::index_spread_blocks, number(stats.spread_blocks));
  metrics.set(MetricId::index_holders, number(stats.holders));
  metrics.set(MetricId::index_failed_holders, number(stats.failed_holders));
}

}  // namespace cedar::actors
