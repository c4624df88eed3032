#include "bench/serve/synthetic_report.h"

#include <cstdio>

#include "bench/support/report.h"

namespace cedar::bench {

using Json = nlohmann::ordered_json;

double bytes_per_connection(const std::vector<MemoryPoint>& points) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const MemoryPoint& point : points) {
    const auto connections = static_cast<double>(point.connections);
    const auto bytes = static_cast<double>(point.bytes);
    n += 1;
    x += connections;
    y += bytes;
    xx += connections * connections;
    xy += connections * bytes;
  }
  const double spread = n * xx - x * x;
  return spread > 0 ? (n * xy - x * y) / spread : 0;
}

namespace {

double streaming_bytes(const SyntheticResult& r) {
  if (r.idle.empty() || r.connections == 0) return 0;
  return static_cast<double>(r.streaming_peak_bytes - r.idle.front().bytes) /
         static_cast<double>(r.connections);
}

double max_of(const std::vector<double>& sorted) { return sorted.empty() ? 0 : sorted.back(); }

}  // namespace

bool all_received(const SyntheticResult& r) {
  return r.completed == r.streams && r.wrong.lost == 0 && r.wrong.repeated == 0 &&
         r.wrong.out_of_order == 0;
}

Json to_json(const SyntheticOptions& options, const SyntheticResult& r) {
  Json quantiles = Json::array();
  for (const double q :
       {0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999, 1.0}) {
    quantiles.push_back({q, percentile(r.latency_ms, q)});
  }
  Json idle = Json::array();
  for (const MemoryPoint& point : r.idle) {
    idle.push_back({{"connections", point.connections}, {"bytes", point.bytes}});
  }
  return {
      {"slow_share", options.slow_share},
      {"resumable", options.resumable},
      {"connections", r.connections},
      {"slow_connections", r.slow_connections},
      {"slow_connections_closed_by_server", r.slow_closed},
      {"streams", r.streams},
      {"streams_completed", r.completed},
      {"streams_lost", r.streams - r.completed},
      {"tokens", r.tokens},
      {"tokens_lost", r.wrong.lost},
      {"tokens_repeated", r.wrong.repeated},
      {"tokens_out_of_order", r.wrong.out_of_order},
      {"problems", r.problems},
      {"seconds", r.seconds},
      {"tokens_per_s", r.seconds > 0 ? static_cast<double>(r.tokens) / r.seconds : 0},
      {"added_latency_ms",
       {{"p50", percentile(r.latency_ms, 0.5)},
        {"p99", percentile(r.latency_ms, 0.99)},
        {"p99.9", percentile(r.latency_ms, 0.999)},
        {"max", max_of(r.latency_ms)}}},
      {"added_latency_quantiles_ms", quantiles},
      {"added_latency_p99_of_each_second_ms", r.second_p99_ms},
      {"source_lag_max_ms", r.source_lag_ms},
      {"idle_bytes_per_connection", bytes_per_connection(r.idle)},
      {"streaming_bytes_per_connection", streaming_bytes(r)},
      {"idle_memory", idle},
      {"server_cpu_s", r.server_time.total_s},
      {"server_cpu_without_source_s", r.server_time.total_s - r.server_time.source_s},
      {"client_cpu_s", r.client_time_s},
  };
}

void print(const std::string& title, const SyntheticResult& r) {
  std::printf("%s: %lld streams on %lld connections", title.c_str(),
              static_cast<long long>(r.streams), static_cast<long long>(r.connections));
  if (r.slow_connections > 0) {
    std::printf(", %lld of them not reading (the server closed %lld)",
                static_cast<long long>(r.slow_connections), static_cast<long long>(r.slow_closed));
  }
  std::printf(
      "\n  completed %lld, lost %lld; tokens %lld, lost %lld, repeated %lld, out of order %lld\n",
      static_cast<long long>(r.completed), static_cast<long long>(r.streams - r.completed),
      static_cast<long long>(r.tokens), static_cast<long long>(r.wrong.lost),
      static_cast<long long>(r.wrong.repeated), static_cast<long long>(r.wrong.out_of_order));
  std::printf("  added latency of a token: p50 %.2f ms, p99 %.2f ms, p99.9 %.2f ms, max %.2f ms\n",
              percentile(r.latency_ms, 0.5), percentile(r.latency_ms, 0.99),
              percentile(r.latency_ms, 0.999), max_of(r.latency_ms));
  std::printf("  memory of a connection: %.1f KiB idle, %.1f KiB while streaming\n",
              bytes_per_connection(r.idle) / 1024, streaming_bytes(r) / 1024);
  std::printf(
      "  %.1f s, %.0f tokens/s; processor time: server %.1f s (source %.1f s of it), client %.1f "
      "s; "
      "the source was at most %.1f ms late\n",
      r.seconds, static_cast<double>(r.tokens) / r.seconds, r.server_time.total_s,
      r.server_time.source_s, r.client_time_s, r.source_lag_ms);
  for (const std::string& problem : r.problems) std::printf("  ! %s\n", problem.c_str());
}

}  // namespace cedar::bench
