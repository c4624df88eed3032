#include "apps/node_options.h"

#include <chrono>
#include <cstdio>
#include <span>
#include <string>
#include <utility>

#include "actors/index_server.h"
#include "apps/serve_options.h"
#include "config/pipeline.h"
#include "core/check.h"
#include "core/device.h"
#include "core/text_file.h"
#include "core/thread_pool.h"
#include "model/block_key.h"
#include "model/kv_layout.h"
#include "model/layer_plan.h"

namespace cedar::apps {
namespace {

using std::chrono::milliseconds;

/// 16 digits say enough in an error message and collide with nothing.
std::string short_hex(const model::Sha256& digest) {
  std::string text;
  for (size_t i = 0; i < 8; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", digest[i]);
    text += digits;
  }
  return text;
}

model::Sha256 digest_of(const std::string& text) {
  return model::sha256({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

std::string describe(const model::KvLayout& layout) {
  std::string sources;
  for (const model::KvSourceLayout& source : layout.sources) {
    sources += std::to_string(source.layer) + ':' + std::to_string(source.ratio) + ':' +
               std::to_string(source.main_offset) + ':' + std::to_string(source.index_offset) + ' ';
  }
  sources += std::to_string(layout.main_row_bytes) + ' ' + std::to_string(layout.index_row_bytes) +
             ' ' + std::to_string(layout.window_row_bytes);
  return std::to_string(layout.block_tokens) + " tokens in " + std::to_string(layout.block_bytes) +
         " bytes (" + short_hex(digest_of(sources)) + ')';
}

actors::PipelinePlace pipeline_place(const config::ClusterConfig& c,
                                     const config::NodeSettings& node) {
  actors::PipelinePlace place;
  place.name = node.pipeline;
  const auto ranks = config::pipeline_ranks(c, node.pipeline);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    place.ranks.push_back({static_cast<LayerId>(ranks[rank].layers.first),
                           static_cast<LayerId>(ranks[rank].layers.last)});
    if (ranks[rank].node->name == node.name) place.rank = rank;
  }
  const int64_t depth = ranks.front().node->pipeline_depth;
  // An encoder's chunks wait for each other at the ranks; a decoder's groups are the smaller the more there are.
  place.depth = depth > 0             ? static_cast<size_t>(depth)
                : node.has("encoder") ? ranks.size() + 1
                                      : ranks.size();
  return place;
}

}  // namespace

Status check_pipeline_ends(const config::ClusterConfig& c) {
  for (const config::NodeSettings& node : c.nodes) {
    if (node.pipeline.empty()) continue;
    const std::string directory =
        node.model_directory.empty() ? demo_model_directory() : node.model_directory;
    CEDAR_TRY(const model::ModelConfig model, model::load_model_config(directory));
    CEDAR_TRY(const model::ModelPlan plan, model::make_layer_plan(model));
    const config::PipelineRank last = config::pipeline_ranks(c, node.pipeline).back();
    const model::Role role = node.has("decoder") ? model::Role::decoder : model::Role::encoder;
    const int64_t end = model::layers_of(role, plan).last;
    if (last.layers.last == end) continue;
    return make_error(Errc::invalid_config,
                      "node " + last.node->name + ".layers: pipeline \"" + node.pipeline +
                          "\" ends with layer " + std::to_string(last.layers.last - 1) +
                          ", the model's " + std::string(model::to_string(role)) + " with layer " +
                          std::to_string(end - 1));
  }
  return {};
}

Result<actors::ClusterNodeOptions> node_options(const config::ClusterConfig& c,
                                                const config::NodeSettings& node) {
  actors::ClusterNodeOptions options;
  options.cluster = c.cluster.name;
  if (!c.cluster.secret_file.empty()) {
    auto secret = read_text_file(c.cluster.secret_file);
    if (!secret) {
      return make_error(Errc::invalid_config, "cluster.secret_file: " + secret.error().context);
    }
    // Editors end files with a line break, and not all of them do.
    while (!secret->empty() && (secret->back() == '\n' || secret->back() == '\r')) {
      secret->pop_back();
    }
    if (secret->empty()) {
      return make_error(Errc::invalid_config,
                        "cluster.secret_file: " + c.cluster.secret_file + " is empty");
    }
    options.secret = std::move(*secret);
  }
  options.name = node.name;
  options.id = node.id();
  options.generation =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                std::chrono::system_clock::now().time_since_epoch())
                                .count());
  options.heartbeat_interval = milliseconds(c.cluster.heartbeat_interval_ms);
  options.lost_after = milliseconds(c.cluster.lost_after_ms);
  options.dial_interval = milliseconds(c.cluster.dial_interval_ms);
  options.handshake_timeout = milliseconds(c.cluster.handshake_timeout_ms);
  options.max_replacements = static_cast<int32_t>(c.cluster.max_replacements);
  if (c.tls.enabled) {
    options.certificate = c.tls.certificate;
    options.key = c.tls.key;
    options.authority = c.tls.authority;
  }
  if (node.has("gateway")) {
    CEDAR_TRY(const config::HostPort door, config::parse_host_port(node.control));
    options.door = {door.host, door.port};
  }
  for (const config::NodeSettings* gateway : c.gateways_of(node)) {
    if (gateway->name == node.name) continue;
    CEDAR_TRY(const config::HostPort address, config::parse_host_port(gateway->control));
    options.gateways.push_back({gateway->name, {address.host, address.port}});
  }
  options.encoder = node.has("encoder");
  options.decoder = node.has("decoder");
  if (!node.pipeline.empty()) {
    (options.encoder ? options.encoder_pipeline : options.decoder_pipeline) =
        pipeline_place(c, node);
  }
  options.cache = node.has("cache");
  if (!node.data.empty()) {
    CEDAR_TRY(const config::HostPort data, config::parse_host_port(node.data));
    options.data.listen_host = data.host;
    options.data.listen_port = data.port;
  }
  const config::DataSettings plane = c.data_settings(node);
  options.data.spin_rounds = static_cast<uint32_t>(plane.spin_rounds);
  options.data.ping_interval_ms = static_cast<uint32_t>(plane.ping_interval_ms);
  options.data.ping_timeout_ms = static_cast<uint32_t>(plane.ping_timeout_ms);
  options.ucx.tls = plane.transports;
  options.ucx.net_devices = plane.devices;
  const config::ServeConfig serve = c.serve_config(node);
  CEDAR_TRY(const Device device, parse_device(node.device));
  const int threads =
      serve.engine.threads > 0 ? static_cast<int>(serve.engine.threads) : usable_processors();
  options.system = system_options(serve, device, threads);
  if (node.has("indexer")) {
    actors::IndexServerOptions indexer;
    indexer.memory_bytes = node.indexer_mib << 20;
    indexer.threads = threads;
    options.services.push_back(actors::index_server(indexer));
  }
  if (serve.engine.engram == "service") {
    actors::RemoteEngramOptions& engram = options.engram.emplace();
    engram.timeout = milliseconds(serve.engine.engram_timeout_ms);
    engram.cache_bytes = serve.engine.engram_cache_mib << 20;
  }
  return options;
}

monitoring::RoleSet metric_roles(const actors::ClusterNodeOptions& options,
                                 const config::NodeSettings& node) {
  using monitoring::Role;
  monitoring::RoleSet roles{Role::process};
  const bool has_stages = options.encoder || options.decoder;
  if (options.door) roles.add(Role::gateway);
  if (options.encoder) roles.add(Role::encoder);
  if (options.decoder) roles.add(Role::decoder);
  if (options.cache) roles.add(Role::cache);
  if (!node.data.empty()) roles.add(Role::data_plane);
  if (has_stages && options.engram) roles.add(Role::engram_client);
  if (has_stages && options.system.engine.index_service_min_tokens > 0) {
    roles.add(Role::index_client);
  }
  if (node.has("engram")) roles.add(Role::engram);
  if (node.has("indexer")) roles.add(Role::indexer);
  return roles;
}

namespace {

model::KvLayout layout_of(const ModelText& text) {
  const auto plan = model::make_layer_plan(text.config);
  CEDAR_ASSERT(plan.has_value(), "load_model_config has checked it");
  return model::make_kv_layout(text.config, *plan);
}

}  // namespace

std::string cache_identity(const ModelText& text) {
  return describe(layout_of(text)) + ", model " + short_hex(digest_of(text.config.canonical_json));
}

void identify_model(actors::ClusterNodeOptions& options, const ModelText& text,
                    const model::Checkpoint* weights) {
  const model::KvLayout layout = layout_of(text);
  options.kv_layout = describe(layout);
  options.block_bytes = layout.block_bytes;
  options.system.cache.identity = cache_identity(text);
  options.model_config = short_hex(digest_of(text.config.canonical_json));
  if (weights != nullptr) options.weights = short_hex(model::model_fingerprint(*weights, ""));
}

}  // namespace cedar::apps
