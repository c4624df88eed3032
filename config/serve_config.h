#pragma once
// What an operator may set for `cedar serve`: typed settings, read from TOML. docs/config.md is written
// from the same list (describe_serve_config).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace cedar::config {

struct ModelSettings {
  std::string directory;              // empty: the demo model that comes with the program
  std::string name;                   // id in the API; empty: the directory's name
  std::vector<std::string> aliases;   // further names a request may use
  std::string thinking = "auto";      // for requests that do not say; auto: off for the demo model
  int64_t default_max_tokens = 4096;  // for requests that do not say; the context bounds it too
  std::string device = "cpu";
};

struct EngineSettings {
  int64_t threads = 0;  // 0: the processors this process may use
  int64_t max_sequences = 8;
  int64_t index_service_min_tokens = 0;  // 0: never
  int64_t index_service_timeout_ms = 2000;
  int64_t kv_pool_blocks = 0;  // 0: max_sequences of full length, at most 1 GiB
  int64_t prefill_chunk_tokens = 512;
  int64_t max_context_tokens = 0;  // 0: what the model allows
  std::string replay = "bounded";  // "bounded" or "exact"
  std::string resume = "exact";    // "bounded" or "exact"
  std::string engram = "local";    // "local", or "service": the cluster's engram nodes
  int64_t engram_timeout_ms = 2000;
  int64_t engram_cache_mib = 64;
};

struct ActorSettings {
  int64_t scheduler_threads = 1;
  int64_t max_throughput = 100;  // messages an actor may handle before it yields its thread
  int64_t max_queued = 256;      // requests waiting for room; one more is refused
  int64_t cache_mib = 64;        // bound of the in-memory KV block cache
  std::string cache_directory;   // of the disk tier behind it; empty: none
  int64_t cache_disk_mib = 65536;
  int64_t cache_retention_hours = 72;
  int64_t window_cache_mib = 16;  // windows of sessions between turns
  int64_t window_cache_ttl_s = 600;
};

struct HttpSettings {
  std::string host = "127.0.0.1";
  int64_t port = 8080;  // 0: any free port
  int64_t io_threads = 1;
  int64_t compute_threads = 1;  // for JSON and tokenisation
  int64_t max_connections = 4096;
  int64_t max_header_bytes = 16384;
  int64_t max_body_bytes = 8 << 20;
  int64_t max_bodies_bytes = 64 << 20;
  int64_t header_timeout_ms = 10000;
  int64_t body_timeout_ms = 60000;
  int64_t idle_timeout_ms = 75000;
  int64_t write_timeout_ms = 30000;    // a client that reads nothing for so long is dropped
  int64_t max_unsent_bytes = 4 << 20;  // per connection; more unread output drops the client
  int64_t request_timeout_ms = 600000;
  int64_t shutdown_grace_ms = 3000;
  std::string tls_certificate;  // PEM file; empty: no TLS
  std::string tls_key;          // PEM file
  int64_t tls_handshake_timeout_ms = 10000;
  std::vector<std::string> allowed_origins;  // of web pages; none: only the server's own page
  std::vector<std::string> allowed_hosts;    // names besides localhost, for a server on loopback
  std::string metrics = "open";          // "open" or "key": whether /metrics asks for an API key
  std::string metrics_aliases = "none";  // "none" or "vllm"
  bool debug_requests = false;
  int64_t ready_stall_ms = 60000;
};

/// An API key. Where it comes from is written here, the key itself never is: exactly one of sha256, file and env.
struct KeySettings {
  std::string name;
  std::string sha256;  // of the key, in hexadecimal
  std::string file;    // that holds the key in its first line
  std::string env;     // variable of the environment that holds it
  int64_t max_concurrent = 0;
  int64_t requests_per_minute = 0;
  int64_t tokens_per_minute = 0;
};

struct StreamSettings {
  int64_t max_in_flight = 32;
  int64_t merge_unsent_bytes = 256 << 10;
  int64_t ping_interval_ms = 20000;
  int64_t idle_timeout_ms = 600000;
  int64_t replay_ttl_ms = 120000;
  int64_t replay_max_bytes = 1 << 20;
  int64_t detach_grace_ms = 30000;
  int64_t max_detached = 16;
};

struct ServeConfig {
  ModelSettings model;
  EngineSettings engine;
  ActorSettings actors;
  HttpSettings http;
  StreamSettings stream;
  std::vector<KeySettings> keys;  // none: everybody may
};

/// Errors: invalid_config naming the key, its value and what is allowed; unknown keys are errors too.
/// `source` is the name used in messages.
Result<ServeConfig> parse_serve_config(std::string_view toml_text, const std::string& source);
/// `path` as a setting of `file` means it: relative ones are relative to the file. Empty ones stay.
std::string beside(const std::string& file, const std::string& path);
/// The same for every setting that is a path.
void resolve_paths(ServeConfig& config, const std::string& file);
/// With the paths resolved. Errors: also not_found and io_error.
Result<ServeConfig> load_serve_config(const std::string& path);
/// Checks values that did not come from a file (command line). Errors as parse_serve_config.
Status validate(const ServeConfig& config);

/// docs/config.md: the settings as Markdown tables of key, default, range and meaning.
std::string describe_serve_config();

}  // namespace cedar::config
