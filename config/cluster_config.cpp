#include "config/cluster_config.h"

#include <arpa/inet.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "config/cluster_settings.h"
#include "config/pipeline.h"
#include "config/serve_settings.h"
#include "config/settings_io.h"
#include "core/crc32c.h"
#include "core/device.h"
#include "core/text_file.h"

namespace cedar::config {
namespace {

NodeSettings node_defaults(const ServeConfig& serve) {
  NodeSettings node;
  node.model_directory = serve.model.directory;
  node.device = serve.model.device;
  node.threads = serve.engine.threads;
  node.max_sequences = serve.engine.max_sequences;
  node.kv_pool_blocks = serve.engine.kv_pool_blocks;
  node.prefill_chunk_tokens = serve.engine.prefill_chunk_tokens;
  node.index_service_min_tokens = serve.engine.index_service_min_tokens;
  node.engram = serve.engine.engram;
  node.cache_mib = serve.actors.cache_mib;
  node.cache_directory = serve.actors.cache_directory;
  node.cache_disk_mib = serve.actors.cache_disk_mib;
  node.window_cache_mib = serve.actors.window_cache_mib;
  node.http_host = serve.http.host;
  node.http_port = serve.http.port;
  return node;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}
bool is_ip_address(const std::string& host) {
  in6_addr bytes{};  // room for either
  return ::inet_pton(AF_INET, host.c_str(), &bytes) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &bytes) == 1;
}
bool is_wildcard(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

bool is_pattern(const std::string& name) { return !name.empty() && name.back() == '*'; }

bool is_good_name(std::string_view name) {
  const auto good = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), good);
}

/// Rules between settings; each complaint names the node.
class ClusterChecker : public SettingsChecker {
 public:
  ClusterChecker(const ClusterConfig& config, const std::string& source)
      : SettingsChecker(source + ": "), config_(config) {}

  void check() {
    check_shared();
    if (config_.nodes.empty()) complain_cluster("node: the cluster has no nodes, [[node]]");
    for (const NodeSettings& node : config_.nodes) check_node(node);
    for (const char* role : {"gateway", "encoder", "decoder"}) {
      const bool found = std::any_of(config_.nodes.begin(), config_.nodes.end(),
                                     [&](const NodeSettings& node) { return node.has(role); });
      if (!found) complain_cluster(std::string("node: no node has the role ") + role);
    }
    check_engram_shards();
    for (const PipelineComplaint& complaint : check_pipelines(config_)) {
      table("node " + complaint.node->name);
      complain(complaint.key, complaint.what);
    }
  }

 private:
  void complain_cluster(const std::string& what) {
    if (complaint_.empty()) complaint_ = prefix_ + what;
  }

  void check_shared() {
    const ClusterSettings& cluster = config_.cluster;
    table("cluster");
    if (!is_good_name(cluster.name)) {
      complain("name", "must be 1 to 64 letters, digits, '-', '_' or '.', got " +
                           toml_string(cluster.name));
    }
    if (cluster.lost_after_ms < 2 * cluster.heartbeat_interval_ms) {
      complain("lost_after_ms", "must be at least two heartbeat intervals, " +
                                    std::to_string(2 * cluster.heartbeat_interval_ms) + ", got " +
                                    std::to_string(cluster.lost_after_ms));
    }
    if (!config_.tls.enabled) return;
    table("tls");
    const std::pair<const char*, const std::string&> files[] = {
        {"certificate", config_.tls.certificate},
        {"key", config_.tls.key},
        {"authority", config_.tls.authority}};
    for (const auto& [key, file] : files) {
      if (file.empty()) complain(key, "must name a file when tls.enabled is true");
    }
  }

  void check_node(const NodeSettings& node) {
    const size_t index = names_.size();
    table("node[" + std::to_string(index) + "]");
    const std::string_view name = node.name;
    if (!is_good_name(is_pattern(node.name) ? name.substr(0, name.size() - 1) : name)) {
      complain("name",
               "must be 1 to 64 letters, digits, '-', '_' or '.', and may end in '*', got " +
                   toml_string(node.name));
    }
    if (is_pattern(node.name) && node.has("gateway")) {
      complain("name",
               "of a gateway must be known to the other nodes, got " + toml_string(node.name));
    }
    if (!names_.emplace(node.name, index).second) {
      complain("name", "must be unique, got " + toml_string(node.name) + " a second time");
    }
    const auto [same_id, is_new] = ids_.emplace(node.id(), node.name);
    if (!is_new) {
      complain("name", toml_string(node.name) + " has the same id as " +
                           toml_string(same_id->second) + ", " + std::to_string(node.id().value) +
                           ": choose another name");
    }
    table("node " + node.name);
    check_roles(node);
    if (const auto device = parse_device(node.device); !device) {
      complain("device", "must be cpu, cuda or cuda:N, got " + toml_string(node.device));
    }
    check_index_service(node);
    if (!node.metrics.empty()) check_page(node);
    if (node.has("gateway")) {
      check_address(node, "control", node.control, false);
      if (node.http_port != 0) {
        claim(node, "http_port", node.http_host + ':' + std::to_string(node.http_port));
      }
    } else if (!node.control.empty()) {
      complain("control", "is for gateways only, got " + toml_string(node.control));
    }
    const bool is_bare_gateway = node.roles.size() == 1 && node.has("gateway");
    if (!is_bare_gateway || !node.data.empty()) {
      check_address(node, "data", node.data, true);
    }
    if (node.engram_shard >= node.engram_shards) {
      complain("engram_shard", "must be less than engram_shards, " +
                                   std::to_string(node.engram_shards) + ", got " +
                                   std::to_string(node.engram_shard));
    }
    for (const std::string& wanted : node.gateways) {
      const NodeSettings* gateway = config_.find(wanted);
      if (gateway == nullptr || !gateway->has("gateway")) {
        complain("gateways", "must be names of gateways, got " + toml_string(wanted));
      }
    }
  }

  /// Indexers compute on the CPU, whose scores are not a GPU's to the last bit.
  void check_index_service(const NodeSettings& node) {
    const bool has_stages = node.has("encoder") || node.has("decoder");
    if (!has_stages || node.index_service_min_tokens == 0 || node.device == "cpu") return;
    complain("index_service_min_tokens",
             "must be 0 with device = " + toml_string(node.device) +
                 ": indexers answer stages with device = \"cpu\" alone, got " +
                 std::to_string(node.index_service_min_tokens));
  }

  /// Stages that take rows from a service need nodes that together serve all of them.
  void check_engram_shards() {
    std::map<int64_t, std::set<int64_t>> served;
    const NodeSettings* user = nullptr;
    for (const NodeSettings& node : config_.nodes) {
      if (node.has("engram")) served[node.engram_shards].insert(node.engram_shard);
      const bool has_stage = node.has("encoder") || node.has("decoder");
      if (has_stage && node.engram == "service" && user == nullptr) user = &node;
    }
    const bool complete = std::any_of(served.begin(), served.end(), [](const auto& entry) {
      return static_cast<int64_t>(entry.second.size()) == entry.first;
    });
    if (user == nullptr || complete) return;
    table("node " + user->name);
    if (served.empty()) {
      return complain("engram", "is \"service\", but no node has the role engram");
    }
    const auto& [shards, some] = *served.begin();
    int64_t missing = 0;
    while (some.count(missing) != 0) ++missing;
    complain("engram", "is \"service\", but no node serves engram_shard " +
                           std::to_string(missing) + " of " + std::to_string(shards));
  }

  void check_roles(const NodeSettings& node) {
    if (node.roles.empty()) complain("roles", "must name at least one role, got []");
    std::vector<std::string> roles = node.roles;
    std::sort(roles.begin(), roles.end());
    const auto twice = std::adjacent_find(roles.begin(), roles.end());
    if (twice != roles.end())
      complain("roles", "must not repeat, got " + toml_string(*twice) + " twice");
  }

  void check_address(const NodeSettings& node, const char* key, const std::string& text,
                     bool any_port) {
    if (text.empty())
      return complain(key, "must be host:port for the roles of this node, got \"\"");
    const auto address = parse_host_port(text);
    if (!address) return complain(key, "must be host:port, got " + toml_string(text));
    if (is_wildcard(address->host)) {
      return complain(key,
                      "must be an address that other nodes can reach, got " + toml_string(text));
    }
    if (address->port == 0 && !any_port) {
      return complain(key, "must have a port that nodes can dial, got " + toml_string(text));
    }
    if (address->host.find('*') != std::string::npos && !is_pattern(node.name)) {
      return complain(key, "may have a '*' where node.name ends in one, got " + toml_string(text));
    }
    // Nodes of a pattern have hosts of their own.
    if (address->port != 0 && !is_pattern(node.name))
      claim(node, key, address->host + ':' + std::to_string(address->port));
    if (!is_loopback(address->host) && config_.cluster.secret_file.empty()) {
      complain(key, "is " + toml_string(text) +
                        ": a cluster over a network needs cluster.secret_file, which is \"\"");
    }
  }

  void check_page(const NodeSettings& node) {
    const auto address = parse_host_port(node.metrics);
    if (!address) return complain("metrics", "must be host:port, got " + toml_string(node.metrics));
    if (address->host != "localhost" && !is_ip_address(address->host)) {
      return complain("metrics", "must have an IP address or localhost for its host, got " +
                                     toml_string(node.metrics));
    }
    // Nodes that others reach may be on machines of their own, with the same loopback address each.
    const auto data = parse_host_port(node.data);
    if (data && is_loopback(data->host) && address->port != 0 && !is_pattern(node.name)) {
      claim(node, "metrics", address->host + ':' + std::to_string(address->port));
    }
  }

  void claim(const NodeSettings& node, const char* key, const std::string& address) {
    const auto [other, is_new] = addresses_.emplace(address, node.name + '.' + key);
    if (!is_new)
      complain(key, "is " + toml_string(address) + ", which is " + other->second + ", too");
  }

  const ClusterConfig& config_;
  std::map<std::string, size_t> names_;
  std::map<NodeId, std::string> ids_;
  std::map<std::string, std::string> addresses_;  // host:port -> who has it
};

}  // namespace

bool NodeSettings::has(std::string_view role) const {
  return std::find(roles.begin(), roles.end(), role) != roles.end();
}

NodeId NodeSettings::id() const { return NodeId(crc32c(std::as_bytes(std::span(name)))); }

const NodeSettings* ClusterConfig::find(std::string_view name) const {
  for (const NodeSettings& node : nodes) {
    if (node.name == name) return &node;
  }
  return nullptr;
}

std::optional<NodeSettings> ClusterConfig::node(std::string_view name) const {
  if (is_pattern(std::string(name))) return std::nullopt;
  if (const NodeSettings* exact = find(name)) return *exact;
  const NodeSettings* best = nullptr;
  for (const NodeSettings& node : nodes) {
    if (!is_pattern(node.name) || !is_good_name(name)) continue;
    const std::string_view prefix = std::string_view(node.name).substr(0, node.name.size() - 1);
    const bool matches = name.size() > prefix.size() && name.substr(0, prefix.size()) == prefix;
    if (matches && (best == nullptr || node.name.size() > best->name.size())) best = &node;
  }
  if (best == nullptr) return std::nullopt;
  NodeSettings node = *best;
  const std::string star(name.substr(best->name.size() - 1));
  if (const size_t at = node.data.find('*'); at != std::string::npos)
    node.data.replace(at, 1, star);
  node.name = name;
  return node;
}

std::vector<const NodeSettings*> ClusterConfig::gateways_of(const NodeSettings& node) const {
  std::vector<const NodeSettings*> gateways;
  for (const NodeSettings& other : nodes) {
    if (!other.has("gateway")) continue;
    const bool wanted =
        node.gateways.empty() ||
        std::find(node.gateways.begin(), node.gateways.end(), other.name) != node.gateways.end();
    if (wanted) gateways.push_back(&other);
  }
  return gateways;
}

DataSettings ClusterConfig::data_settings(const NodeSettings& node) const {
  DataSettings settings = data;
  const auto address = parse_host_port(node.data);
  if (settings.devices.empty() && address && is_loopback(address->host)) settings.devices = "lo";
  return settings;
}

ServeConfig ClusterConfig::serve_config(const NodeSettings& node) const {
  ServeConfig config = serve;
  config.model.directory = node.model_directory;
  config.model.device = node.device;
  config.engine.threads = node.threads;
  config.engine.max_sequences = node.max_sequences;
  config.engine.kv_pool_blocks = node.kv_pool_blocks;
  config.engine.prefill_chunk_tokens = node.prefill_chunk_tokens;
  config.engine.index_service_min_tokens = node.index_service_min_tokens;
  config.engine.engram = node.engram;
  config.actors.cache_mib = node.cache_mib;
  config.actors.cache_directory = node.cache_directory;
  config.actors.cache_disk_mib = node.cache_disk_mib;
  config.actors.window_cache_mib = node.window_cache_mib;
  config.http.host = node.http_host;
  config.http.port = node.http_port;
  return config;
}

Result<HostPort> parse_host_port(const std::string& text) {
  const auto bad = [&](const char* what) {
    return make_error(Errc::invalid_argument, toml_string(text) + ": " + what);
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return bad("no port, expected host:port");
  HostPort address;
  address.host = text.substr(0, colon);
  if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find(':') != std::string::npos) {
    return bad("an IPv6 address goes in brackets");
  }
  if (address.host.empty()) return bad("no host, expected host:port");
  const std::string port = text.substr(colon + 1);
  const bool digits = !port.empty() && port.size() <= 5 &&
                      port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || std::stoi(port) > 65535) return bad("the port must be in [0, 65535]");
  address.port = static_cast<uint16_t>(std::stoi(port));
  return address;
}

bool is_cluster_config(std::string_view toml_text) {
  const auto root = parse_toml(toml_text, "");
  return root && (root->contains("cluster") || root->contains("node"));
}

Result<ClusterConfig> parse_cluster_config(std::string_view toml_text, const std::string& source) {
  CEDAR_TRY(const toml::value root, parse_toml(toml_text, source));
  ClusterConfig config;
  SettingsReader reader(root, source);
  visit_cluster_settings(config, reader);
  visit_settings(config.serve, reader);
  for (const toml::value* table : reader.array("node")) {
    NodeSettings node = node_defaults(config.serve);
    reader.element(*table, "node[" + std::to_string(config.nodes.size()) + "]");
    visit_node_settings(node, reader);
    config.nodes.push_back(std::move(node));
  }
  reader.complain_about_unknown();
  CEDAR_CHECK_OK(reader.result());
  ClusterChecker checker(config, source);
  checker.check();
  CEDAR_CHECK_OK(checker.result());
  return config;
}

Result<ClusterConfig> load_cluster_config(const std::string& path) {
  CEDAR_TRY(const std::string text, read_text_file(path, FileKind::any));
  CEDAR_TRY(ClusterConfig config, parse_cluster_config(text, path));
  const auto resolve = [&](std::string& file) { file = beside(path, file); };
  resolve(config.cluster.secret_file);
  resolve(config.tls.certificate);
  resolve(config.tls.key);
  resolve(config.tls.authority);
  resolve_paths(config.serve, path);
  for (NodeSettings& node : config.nodes) {
    resolve(node.model_directory);
    resolve(node.cache_directory);
  }
  return config;
}

std::string show_node(const ClusterConfig& config, const NodeSettings& node) {
  SettingsWriter writer;
  writer.table("[node]");
  visit_node_settings(node, writer);
  visit_cluster_settings(config, writer);
  const ServeConfig serve = config.serve_config(node);
  visit_settings(serve, writer);
  return writer.result().substr(1);
}

std::string describe_cluster_config() {
  const ClusterConfig defaults;
  SettingsDescriber describer;
  describer.paragraph(
      "\n# Settings of a cluster\n\n"
      "A file for `cedar node NAME --config FILE` may hold the tables above, which then are the\n"
      "defaults of every node, the tables that follow, and a `[[node]]` for each node. Relative\n"
      "paths are relative to the file. `cedar config check FILE` says what is wrong with it,\n"
      "`cedar config show FILE NODE` what holds for one node. Examples are in `config/examples/`;\n"
      "[cluster.md](cluster.md) is the tour.\n");
  visit_cluster_settings(defaults, describer);
  describer.table("[[node]]");
  const NodeSettings node = node_defaults(defaults.serve);
  visit_node_settings(node, describer);
  return describer.result();
}

}  // namespace cedar::config
