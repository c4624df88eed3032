#pragma once
// Limits and times of the gateway. Filled from the configuration by `cedar serve`.

#include <chrono>
#include <cstdint>
#include <string>

namespace cedar::gateway {

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0: any free port
  int io_threads = 1;
  int compute_threads = 1;
  int64_t max_connections = 4096;
  int64_t max_header_bytes = 16384;
  int64_t max_body_bytes = 8 << 20;
  int64_t max_bodies_bytes =
      64 << 20;  // being read or parsed, with WebSocket messages; at least one fits
  std::chrono::milliseconds header_timeout{10000};
  std::chrono::milliseconds body_timeout{60000};
  std::chrono::milliseconds idle_timeout{75000};
  std::chrono::milliseconds write_timeout{30000};
  std::chrono::milliseconds keep_alive_interval{15000};  // comments on a silent event stream
  int64_t max_unsent_bytes = 4 << 20;
  std::chrono::milliseconds request_timeout{600000};
};

struct StreamOptions {
  int64_t max_message_bytes = 8 << 20;
  int64_t max_in_flight = 32;
  int64_t merge_unsent_bytes = 256 << 10;
  int64_t max_unsent_bytes = 4 << 20;
  std::chrono::milliseconds write_timeout{30000};
  std::chrono::milliseconds ping_interval{20000};
  std::chrono::milliseconds idle_timeout{600000};
  std::chrono::milliseconds replay_ttl{120000};
  int64_t replay_max_bytes = 1 << 20;
  std::chrono::milliseconds detach_grace{30000};
  int64_t max_detached = 16;  // answers that go on without a client
};

struct GatewayOptions {
  HttpOptions http;
  StreamOptions stream;
};

}  // namespace cedar::gateway
