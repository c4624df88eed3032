#pragma once
// Streams of the synthetic source through the gateway to as many connections: what is lost, what is late, what it
// costs. One run is one server process.

#include <cstdint>
#include <string>
#include <vector>

#include "bench/serve/server_process.h"
#include "bench/serve/token_script.h"
#include "core/result.h"

namespace cedar::bench {

struct SyntheticOptions {
  ServerSettings server;
  int64_t streams = 2500;
  int64_t streams_per_connection = 1;
  int64_t tokens = 1000;        // of each answer
  int64_t prompt_tokens = 154;  // about
  double ramp_s = 2;            // over which the requests are spread
  double slow_share = 0;   // of the connections, which read nothing once their requests are sent
  bool resumable = false;  // the server keeps events until they are acknowledged, every 64
};

struct MemoryPoint {
  int64_t connections = 0;
  int64_t bytes = 0;
};

struct SyntheticResult {
  int64_t connections = 0;
  int64_t slow_connections = 0;
  int64_t slow_closed = 0;  // by the server, before the others had their answers
  int64_t streams = 0;      // of the connections that read
  int64_t completed = 0;
  int64_t tokens = 0;
  StreamCheck::Counts wrong;
  std::vector<std::string> problems;  // the first few, in words
  std::vector<double> latency_ms;     // added to each token, ascending
  std::vector<double> second_p99_ms;  // of the tokens of each second
  std::vector<MemoryPoint> idle;      // while the connections are opened
  int64_t streaming_peak_bytes = 0;   // of memory
  double seconds = 0;                 // from the first request to the last answer's end
  ServerTime server_time;             // in these seconds
  double client_time_s = 0;
  double source_lag_ms = 0;  // the longest
};

/// Errors: unavailable (too few open files), io_error. That streams were lost is no error but a result.
Result<SyntheticResult> run_synthetic(const SyntheticOptions& options, const TokenScript& script,
                                      const std::string& title);

}  // namespace cedar::bench
