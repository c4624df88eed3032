#pragma once
// The file that describes a cluster (cluster.toml): which nodes there are, what each does and where it is reached.
// The tables [model], [engine], [actors], [http] and [stream] are those of `cedar serve` (serve_config.h) and hold for
// every node; a node may override some of them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/serve_config.h"
#include "core/ids.h"
#include "core/result.h"

namespace cedar::config {

struct ClusterSettings {
  std::string name = "cedar";
  std::string secret_file;  // empty: no secret, which only loopback addresses allow
  int64_t heartbeat_interval_ms = 500;
  int64_t lost_after_ms = 2000;  // without a sign of life; both directions
  int64_t dial_interval_ms = 500;
  int64_t handshake_timeout_ms = 3000;
  int64_t drain_grace_ms = 10000;
  int64_t max_replacements = 3;
};

/// Of the control plane. Both sides show a certificate that `authority` has signed.
struct TlsSettings {
  bool enabled = false;
  std::string certificate;  // PEM files
  std::string key;
  std::string authority;
};

/// The data plane (transport/).
struct DataSettings {
  std::string transports = "";  // of UCX; empty: its choice
  std::string devices = "";     // network devices; empty: all
  int64_t spin_rounds = 0;
  int64_t ping_interval_ms = 500;
  int64_t ping_timeout_ms = 3000;
};

/// One node, or, with a name that ends in '*', a pattern for any number of them: what stands for the star in a node's name
/// does so in `data`, too.
struct NodeSettings {
  std::string name;
  std::vector<std::string> roles;     // gateway, encoder, decoder, engram, indexer, cache
  std::string control;                // host:port where a gateway listens for members
  std::string data;                   // host:port of the data plane; port 0: any free one
  std::vector<std::string> gateways;  // names of those to register with; empty: all
  // The layers of an encoder or a decoder may be spread over nodes (config/pipeline.h); both or neither.
  std::string pipeline;
  std::string layers;
  int64_t pipeline_depth = 0;  // of the node with the first layers
  // Defaults: the values of [model], [engine] and [http].
  std::string model_directory;
  std::string device;
  int64_t threads = 0;
  int64_t max_sequences = 0;
  int64_t kv_pool_blocks = 0;
  int64_t prefill_chunk_tokens = 0;
  int64_t index_service_min_tokens = 0;
  int64_t indexer_mib = 1024;
  std::string engram;
  int64_t cache_mib = 0;
  std::string cache_directory;
  int64_t cache_disk_mib = 0;
  int64_t window_cache_mib = 0;
  std::string metrics;  // host:port of the page that Prometheus reads; empty: none but a gateway's
  std::string http_host;
  int64_t http_port = 0;
  // Of the role engram.
  int64_t engram_shard = 0;
  int64_t engram_shards = 1;
  std::string engram_memory = "mapped";  // or "resident"

  bool has(std::string_view role) const;
  /// Of the name: equal on every machine, without a list.
  NodeId id() const;
};

struct ClusterConfig {
  ClusterSettings cluster;
  TlsSettings tls;
  DataSettings data;
  ServeConfig serve;
  std::vector<NodeSettings> nodes;

  /// An entry of the file by its name, a pattern's star included. Null: no such entry.
  const NodeSettings* find(std::string_view name) const;
  /// What holds for the node of this name: its own entry, or that of the pattern it matches best. Nothing: none does.
  std::optional<NodeSettings> node(std::string_view name) const;
  /// The gateways that `node` registers with.
  std::vector<const NodeSettings*> gateways_of(const NodeSettings& node) const;
  /// The settings of `cedar serve` with what `node` overrides.
  ServeConfig serve_config(const NodeSettings& node) const;
  /// [data] for a node. Without `devices`, one whose address is on the loopback gets that device alone: others that this
  /// machine has, bridges of containers say, may go while they are used.
  DataSettings data_settings(const NodeSettings& node) const;
};

struct HostPort {
  std::string host;
  uint16_t port = 0;
};
/// "host:port" or "[address]:port". Errors: invalid_argument saying what is wrong.
Result<HostPort> parse_host_port(const std::string& text);

/// Whether a TOML text describes a cluster rather than settings of `cedar serve`. False for text that is no TOML.
bool is_cluster_config(std::string_view toml_text);

/// Errors: invalid_config naming the key, its value and what is allowed; unknown keys are errors too. `source` is the
/// name used in messages.
Result<ClusterConfig> parse_cluster_config(std::string_view toml_text, const std::string& source);
/// Relative paths in the file are relative to the file's directory. Errors: also not_found and io_error.
Result<ClusterConfig> load_cluster_config(const std::string& path);

/// What holds for one node, defaults filled in, as TOML.
std::string show_node(const ClusterConfig& config, const NodeSettings& node);

/// The second half of docs/config.md.
std::string describe_cluster_config();

}  // namespace cedar::config
