#pragma once
// The list of settings, visited by the TOML reader, the range check and the documentation writer alike.

#include <cstdint>
#include <limits>

#include "config/serve_config.h"

namespace cedar::config {

/// Calls, for every setting: v.table(name), v.text(key, field, help), v.choice(key, field, {..}, help),
/// v.integer(key, field, min, max, help), v.texts(key, field, help); and for every list of tables
/// v.list(name, field, help, visit), which calls visit(entry, v) for each of them.
template <class Config, class Visitor>
void visit_settings(Config& c, Visitor& v) {
  constexpr int64_t kMany = std::numeric_limits<int32_t>::max();
  constexpr int64_t kHourMs = 3600 * 1000;

  v.table("model");
  v.text("directory", c.model.directory, "checkpoint to serve; empty: the demo model");
  v.text("name", c.model.name, "id in the API; empty: the directory's name");
  v.texts("aliases", c.model.aliases, "further model names that requests may use");
  v.choice("thinking", c.model.thinking, {"auto", "on", "off"},
           "for requests that do not say; auto: on, but off for the demo model");
  v.integer("default_max_tokens", c.model.default_max_tokens, 1, kMany,
            "limit of an answer for requests that do not say");
  v.text("device", c.model.device, "cpu, cuda or cuda:N");

  v.table("engine");
  v.integer("threads", c.engine.threads, 0, 1024,
            "CPU threads per stage; 0: all usable processors");
  v.integer("max_sequences", c.engine.max_sequences, 1, 65536, "sequences in flight");
  v.integer("kv_pool_blocks", c.engine.kv_pool_blocks, 0, kMany,
            "KV blocks of a stage; 0: max_sequences of full length, at most 1 GiB");
  v.integer("prefill_chunk_tokens", c.engine.prefill_chunk_tokens, 1, kMany,
            "rows of an encoder step");
  v.integer("max_context_tokens", c.engine.max_context_tokens, 0, kMany,
            "0: what the model allows");
  v.integer("index_service_min_tokens", c.engine.index_service_min_tokens, 0, kMany,
            "index keys of sequences at least so long go to the indexers of a cluster; 0: never");
  v.integer("index_service_timeout_ms", c.engine.index_service_timeout_ms, 1, kHourMs,
            "an indexer that has not answered is done without");
  v.choice("replay", c.engine.replay, {"bounded", "exact"}, "how the decoder rebuilds its windows");
  v.choice("resume", c.engine.resume, {"bounded", "exact"},
           "how the encoder rebuilds its windows behind cached blocks");
  v.choice(
      "engram", c.engine.engram, {"local", "service"},
      "rows of the Engram tables: from the checkpoint here, or from the cluster's engram nodes");
  v.integer("engram_timeout_ms", c.engine.engram_timeout_ms, 10, kHourMs,
            "for the rows of one layer and step from a service");
  v.integer("engram_cache_mib", c.engine.engram_cache_mib, 0, kMany,
            "of hot rows, where they come from a service");

  v.table("actors");
  v.integer("scheduler_threads", c.actors.scheduler_threads, 1, 1024,
            "threads of the actor scheduler");
  v.integer("max_throughput", c.actors.max_throughput, 1, 100000,
            "messages an actor handles before it yields its thread");
  v.integer("max_queued", c.actors.max_queued, 0, 1000000, "requests waiting for room");
  v.integer("cache_mib", c.actors.cache_mib, 0, kMany,
            "memory of the KV block cache (role cache in a cluster); 0: none");
  v.text("cache_directory", c.actors.cache_directory,
         "where the cache keeps KV blocks on disk, across restarts; empty: nowhere");
  v.integer("cache_disk_mib", c.actors.cache_disk_mib, 1, int64_t{1} << 32,
            "bound of the files there");
  v.integer("cache_retention_hours", c.actors.cache_retention_hours, 0, 24 * 365,
            "blocks that the bound pushed out of there earlier are counted apart");
  v.integer("window_cache_mib", c.actors.window_cache_mib, 0, kMany,
            "memory of the cache for windows of sessions between turns; at most a tenth of the "
            "machine's is used; 0: none");
  v.integer("window_cache_ttl_s", c.actors.window_cache_ttl_s, 1, 24 * 3600,
            "windows that no turn asked for are let go");

  v.table("http");
  v.text("host", c.http.host, "address to listen on");
  v.integer("port", c.http.port, 0, 65535, "0: any free port");
  v.integer("io_threads", c.http.io_threads, 1, 256, "threads that serve sockets");
  v.integer("compute_threads", c.http.compute_threads, 1, 256, "threads for JSON and tokenisation");
  v.integer("max_connections", c.http.max_connections, 1, 1000000, "more are closed at once");
  v.integer("max_header_bytes", c.http.max_header_bytes, 256, 1 << 20, "header of a request");
  v.integer("max_body_bytes", c.http.max_body_bytes, 1024, kMany, "body of a request or a message");
  v.integer("max_bodies_bytes", c.http.max_bodies_bytes, 1024, int64_t{1} << 40,
            "bodies being read or parsed, over all connections; at least one fits");
  v.integer("header_timeout_ms", c.http.header_timeout_ms, 1, kHourMs, "for a request's header");
  v.integer("body_timeout_ms", c.http.body_timeout_ms, 1, kHourMs, "for a request's body");
  v.integer("idle_timeout_ms", c.http.idle_timeout_ms, 1, kHourMs, "between requests");
  v.integer("write_timeout_ms", c.http.write_timeout_ms, 1, kHourMs,
            "a client that reads nothing for so long is dropped");
  v.integer("max_unsent_bytes", c.http.max_unsent_bytes, 4096, kMany,
            "unread output after which a client is dropped");
  v.integer("request_timeout_ms", c.http.request_timeout_ms, 1, 24 * kHourMs,
            "deadline of a request, waiting included");
  v.integer("shutdown_grace_ms", c.http.shutdown_grace_ms, 0, kHourMs,
            "time for running answers after a stop signal");
  v.text("tls_certificate", c.http.tls_certificate,
         "PEM file, the server's certificate first, then its issuers; empty: no TLS");
  v.text("tls_key", c.http.tls_key, "PEM file with the certificate's key");
  v.integer("tls_handshake_timeout_ms", c.http.tls_handshake_timeout_ms, 1, kHourMs,
            "for a TLS handshake");
  v.texts("allowed_origins", c.http.allowed_origins,
          "web pages that may use the API from elsewhere (CORS), as https://host:port, or *");
  v.texts("allowed_hosts", c.http.allowed_hosts,
          "names in Host besides localhost, asked of a server on loopback without API keys; or *");
  v.choice("metrics", c.http.metrics, {"open", "key"}, "whether /metrics asks for an API key");
  v.choice("metrics_aliases", c.http.metrics_aliases, {"none", "vllm"},
           "vllm: /metrics has the names of vLLM, too, for dashboards that know them");
  v.flag("debug_requests", c.http.debug_requests,
         "/debug/requests lists what is under way; asks for an API key where there are any");
  v.integer("ready_stall_ms", c.http.ready_stall_ms, 0, kHourMs,
            "not ready while requests wait and none got room for so long; 0: always ready");

  v.table("stream");
  v.integer("max_in_flight", c.stream.max_in_flight, 1, 100000, "answers at once on one WebSocket");
  v.integer("merge_unsent_bytes", c.stream.merge_unsent_bytes, 1024, kMany,
            "unread output from which deltas are merged");
  v.integer("ping_interval_ms", c.stream.ping_interval_ms, 10, kHourMs, "between protocol pings");
  v.integer("idle_timeout_ms", c.stream.idle_timeout_ms, 10, 24 * kHourMs,
            "without an answer or a message");
  v.integer("replay_ttl_ms", c.stream.replay_ttl_ms, 0, kHourMs, "events are kept after the end");
  v.integer("replay_max_bytes", c.stream.replay_max_bytes, 1024, kMany, "events kept per answer");
  v.integer("detach_grace_ms", c.stream.detach_grace_ms, 0, kHourMs,
            "an answer goes on without a client");
  v.integer("max_detached", c.stream.max_detached, 0, 1000000,
            "answers without a client; the oldest ends for one more, and for requests that wait");

  v.list("keys", c.keys,
         "One table for each API key; without any, no key is asked for (docs/http.md).",
         [](auto& key, auto& visitor) {
           visitor.text("name", key.name, "what the key is called; every key its own");
           visitor.text("sha256", key.sha256, "the key's SHA-256 in hexadecimal, or ...");
           visitor.text("file", key.file, "... a file with the key in its first line, or ...");
           visitor.text("env", key.env, "... the variable of the environment that holds it");
           visitor.integer("max_concurrent", key.max_concurrent, 0, 1000000,
                           "requests at once; 0: no bound");
           visitor.integer("requests_per_minute", key.requests_per_minute, 0, kMany, "0: no bound");
           visitor.integer("tokens_per_minute", key.tokens_per_minute, 0, kMany,
                           "of prompts and answers; 0: no bound");
         });
}

}  // namespace cedar::config
