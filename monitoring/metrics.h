#pragma once
// Counters and histograms of one process, and the text Prometheus scrapes. All methods may be called from
// any thread. Label values come from the enums below, never from what a client sent.

#include <array>
#include <cstdint>
#include <memory>
#include <string>

namespace cedar::monitoring {

enum class Route : uint8_t {
  chat,
  completions,
  stream,
  models,
  tokens,
  probes,
  metrics,
  page,
  unknown
};
enum class Outcome : uint8_t { completed, incomplete, cancelled, failed };

/// What the rooms below the gateway report; read when a scrape asks.
struct PipelineGauges {
  int64_t queued_requests = 0;
  int64_t running_requests = 0;
  int64_t live_actors = 0;
  int64_t encoder_requests = 0;
  int64_t encoder_queued_tokens = 0;
  int64_t encoder_free_blocks = 0;
  int64_t decoder_sequences = 0;
  int64_t decoder_free_blocks = 0;
  int64_t decoder_total_blocks = 0;
  // Counters that are kept elsewhere. Rows from services by how a stage came by them: found in its cache, there because
  // it had asked ahead, asked for ahead but late, asked for when needed.
  std::array<int64_t, 4> engram_rows{};
  int64_t engram_failed_fetches = 0;
  bool ready = false;
};

class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void count_http(Route route, int status);
  /// One answer ended, after `prompt_tokens` read and `completion_tokens` written.
  void count_response(Outcome outcome, int64_t prompt_tokens, int64_t completion_tokens);
  void observe_first_token(double seconds);
  void observe_inter_token(double seconds);
  void connection_opened();
  void connection_closed();
  void count_slow_reader();

  /// Prometheus text format 0.0.4.
  std::string scrape(const PipelineGauges& gauges);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cedar::monitoring
