#include "apps/serve_options.h"

#include <chrono>

#include "apps/model_setup.h"
#include "apps/serve_access.h"
#include "gateway/tls_context.h"

namespace cedar::apps {

using Milliseconds = std::chrono::milliseconds;

actors::SystemOptions system_options(const config::ServeConfig& c, Device device, int threads) {
  actors::SystemOptions options;
  options.engine.device = device;
  options.engine.threads = threads;
  options.engine.max_sequences = static_cast<int32_t>(c.engine.max_sequences);
  options.engine.kv_pool_blocks = c.engine.kv_pool_blocks;
  options.engine.prefill_chunk_tokens = c.engine.prefill_chunk_tokens;
  options.engine.max_context_tokens = c.engine.max_context_tokens;
  options.engine.replay =
      c.engine.replay == "exact" ? engine::ReplayMode::exact : engine::ReplayMode::bounded;
  options.engine.index_service_min_tokens = c.engine.index_service_min_tokens;
  options.index_timeout = Milliseconds(c.engine.index_service_timeout_ms);
  options.engine.resume =
      c.engine.resume == "exact" ? engine::ReplayMode::exact : engine::ReplayMode::bounded;
  options.scheduler_threads = c.actors.scheduler_threads;
  options.max_throughput = c.actors.max_throughput;
  options.max_queued = c.actors.max_queued;
  options.cache.bytes = c.actors.cache_mib << 20;
  options.cache.directory = c.actors.cache_directory;
  options.cache.disk_bytes = c.actors.cache_disk_mib << 20;
  options.cache.retention = std::chrono::hours(c.actors.cache_retention_hours);
  options.cache.window_bytes = c.actors.window_cache_mib << 20;
  options.cache.window_ttl = std::chrono::seconds(c.actors.window_cache_ttl_s);
  return options;
}

Result<gateway::GatewayOptions> gateway_options(const config::ServeConfig& c) {
  gateway::GatewayOptions options;
  gateway::HttpOptions& http = options.http;
  CEDAR_CHECK_OK(check_address(c.http.host));
  http.host = c.http.host;
  http.port = static_cast<uint16_t>(c.http.port);
  http.io_threads = static_cast<int>(c.http.io_threads);
  http.compute_threads = static_cast<int>(c.http.compute_threads);
  http.max_connections = c.http.max_connections;
  http.max_header_bytes = c.http.max_header_bytes;
  http.max_body_bytes = c.http.max_body_bytes;
  http.max_bodies_bytes = c.http.max_bodies_bytes;
  http.header_timeout = Milliseconds(c.http.header_timeout_ms);
  http.body_timeout = Milliseconds(c.http.body_timeout_ms);
  http.idle_timeout = Milliseconds(c.http.idle_timeout_ms);
  http.write_timeout = Milliseconds(c.http.write_timeout_ms);
  http.max_unsent_bytes = c.http.max_unsent_bytes;
  http.request_timeout = Milliseconds(c.http.request_timeout_ms);
  http.tls_certificate = c.http.tls_certificate;
  http.tls_key = c.http.tls_key;
  http.tls_handshake_timeout = Milliseconds(c.http.tls_handshake_timeout_ms);
  if (!http.tls_certificate.empty() || !http.tls_key.empty()) {
    CEDAR_CHECK_OK(gateway::TlsContext::load(http.tls_certificate, http.tls_key));
  }
  CEDAR_CHECK_OK(check_origins(c.http.allowed_origins));
  http.allowed_origins = c.http.allowed_origins;
  CEDAR_CHECK_OK(check_hosts(c.http.allowed_hosts));
  http.allowed_hosts = c.http.allowed_hosts;
  http.metrics_need_key = c.http.metrics == "key";
  http.debug_requests = c.http.debug_requests;
  http.ready_stall = Milliseconds(c.http.ready_stall_ms);
  CEDAR_TRY(options.keys, read_api_keys(c.keys));
  gateway::StreamOptions& stream = options.stream;
  stream.max_message_bytes = c.http.max_body_bytes;
  stream.max_unsent_bytes = c.http.max_unsent_bytes;
  stream.write_timeout = http.write_timeout;
  stream.max_in_flight = c.stream.max_in_flight;
  stream.merge_unsent_bytes = c.stream.merge_unsent_bytes;
  stream.ping_interval = Milliseconds(c.stream.ping_interval_ms);
  stream.idle_timeout = Milliseconds(c.stream.idle_timeout_ms);
  stream.replay_ttl = Milliseconds(c.stream.replay_ttl_ms);
  stream.replay_max_bytes = c.stream.replay_max_bytes;
  stream.max_detached = c.stream.max_detached;
  stream.detach_grace = Milliseconds(c.stream.detach_grace_ms);
  return options;
}

gateway::ModelCard served_model(const config::ServeConfig& c, const ModelText& text,
                                const std::string& directory) {
  gateway::ModelCard card =
      make_model_card(text, directory, c.model.name, c.engine.max_context_tokens);
  card.aliases = c.model.aliases;
  card.default_max_tokens = c.model.default_max_tokens;
  if (c.model.thinking != "auto") card.default_thinking = c.model.thinking == "on";
  return card;
}

}  // namespace cedar::apps
