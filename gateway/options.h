#pragma once
// Limits and times of the gateway. Filled from the configuration by `cedar serve`.

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace cedar::gateway {

using KeyDigest = std::array<uint8_t, 32>;  // SHA-256

/// Limits of 0 are none.
struct ApiKey {
  std::string name;  // for people; names of different keys differ
  KeyDigest digest{};
  int64_t max_concurrent = 0;
  int64_t requests_per_minute = 0;
  int64_t tokens_per_minute = 0;  // of prompts and answers
};

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
  std::string tls_certificate;  // PEM files; empty: connections are not encrypted
  std::string tls_key;
  std::chrono::milliseconds tls_handshake_timeout{10000};
  std::vector<std::string>
      allowed_origins;  // of pages, "https://host:port" or "*"; none: CORS is off
  // Names of this server besides localhost, or "*"; they matter on loopback without API keys.
  std::vector<std::string> allowed_hosts;
  bool metrics_need_key = false;
  bool debug_requests = false;
  std::chrono::milliseconds ready_stall{60000};  // 0: never
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
  std::vector<ApiKey> keys;  // none: everybody may
};

}  // namespace cedar::gateway
