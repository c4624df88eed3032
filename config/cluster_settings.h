#pragma once
// The list of cluster settings, visited like serve_settings.h.

#include <cstdint>
#include <limits>

#include "config/cluster_config.h"

namespace cedar::config {

/// Everything but the nodes and the tables of serve_settings.h.
template <class Config, class Visitor>
void visit_cluster_settings(Config& c, Visitor& v) {
  constexpr int64_t kHourMs = 3600 * 1000;
  v.table("cluster");
  v.text("name", c.cluster.name, "nodes of another cluster are refused");
  v.text("secret_file", c.cluster.secret_file,
         "file whose content every node must know; needed unless all addresses are loopback");
  v.integer("heartbeat_interval_ms", c.cluster.heartbeat_interval_ms, 10, kHourMs,
            "between two signs of life");
  v.integer("lost_after_ms", c.cluster.lost_after_ms, 50, kHourMs,
            "a node or gateway silent for so long is lost; at least two intervals");
  v.integer("dial_interval_ms", c.cluster.dial_interval_ms, 10, kHourMs,
            "between attempts to reach a gateway");
  v.integer("handshake_timeout_ms", c.cluster.handshake_timeout_ms, 50, kHourMs,
            "for one attempt to register");
  v.integer("drain_grace_ms", c.cluster.drain_grace_ms, 0, kHourMs,
            "time for running work of a node after SIGTERM");
  v.integer("max_replacements", c.cluster.max_replacements, 0, 100,
            "stages that a request may lose before it fails");

  v.table("tls");
  v.flag("enabled", c.tls.enabled, "encrypt the control plane and verify both sides");
  v.text("certificate", c.tls.certificate, "PEM file of this cluster's nodes");
  v.text("key", c.tls.key, "PEM file of its private key");
  v.text("authority", c.tls.authority, "PEM file of the authority that signed the certificates");

  v.table("data");
  v.text("transports", c.data.transports, "of UCX, as UCX_TLS; empty: its choice");
  v.text("devices", c.data.devices, "network devices, as UCX_NET_DEVICES; empty: all");
  v.integer("spin_rounds", c.data.spin_rounds, 0, 1000000,
            "polls before the data plane's thread sleeps; 0 on shared processors");
  v.integer("ping_interval_ms", c.data.ping_interval_ms, 10, kHourMs, "between pings");
  v.integer("ping_timeout_ms", c.data.ping_timeout_ms, 50, kHourMs,
            "a peer silent for so long is lost");
}

template <class Node, class Visitor>
void visit_node_settings(Node& n, Visitor& v) {
  constexpr int64_t kMany = std::numeric_limits<int32_t>::max();
  v.text("name", n.name,
         "letters, digits, '-', '_' and '.'; unique. With '*' at its end: a pattern for any number "
         "of nodes");
  v.choices("roles", n.roles, {"gateway", "encoder", "decoder", "engram", "indexer", "cache"},
            "what the node does");
  v.text("control", n.control, "host:port where a gateway waits for nodes; others need none");
  v.text("data", n.data,
         "host:port where other nodes reach all roles but gateway; port 0: any free one. In a "
         "pattern, "
         "'*' is what stands for the name's star");
  v.texts("gateways", n.gateways, "names of the gateways to register with; empty: all");
  v.text("pipeline", n.pipeline,
         "encoder nodes, or decoder nodes, with the same name here are one stage, each with some "
         "layers");
  v.text("layers", n.layers, "of the pipeline, first and last, as \"8-13\"");
  v.integer("pipeline_depth", n.pipeline_depth, 0, 64,
            "steps under way in the pipeline; 0: as many as nodes, and one more for encoders; of "
            "its first node");
  v.text("model_directory", n.model_directory, "instead of model.directory");
  v.text("device", n.device, "instead of model.device");
  v.integer("threads", n.threads, 0, 1024, "instead of engine.threads");
  v.integer("max_sequences", n.max_sequences, 1, 65536, "instead of engine.max_sequences");
  v.integer("kv_pool_blocks", n.kv_pool_blocks, 0, kMany, "instead of engine.kv_pool_blocks");
  v.integer("prefill_chunk_tokens", n.prefill_chunk_tokens, 1, kMany,
            "instead of engine.prefill_chunk_tokens");
  v.integer("index_service_min_tokens", n.index_service_min_tokens, 0, kMany,
            "instead of engine.index_service_min_tokens");
  v.integer("indexer_mib", n.indexer_mib, 1, int64_t{1} << 16, "memory of an indexer for keys");
  v.choice("engram", n.engram, {"local", "service"}, "instead of engine.engram");
  v.integer("cache_mib", n.cache_mib, 0, kMany, "instead of actors.cache_mib");
  v.text("cache_directory", n.cache_directory, "instead of actors.cache_directory");
  v.integer("cache_disk_mib", n.cache_disk_mib, 1, int64_t{1} << 32,
            "instead of actors.cache_disk_mib");
  v.integer("window_cache_mib", n.window_cache_mib, 0, kMany, "instead of actors.window_cache_mib");
  v.text("metrics", n.metrics,
         "address:port of a page with /metrics, /livez and /ready, for a node without a gateway; "
         "empty: none");
  v.text("http_host", n.http_host, "instead of http.host");
  v.integer("http_port", n.http_port, 0, 65535, "instead of http.port");
  v.integer("engram_shard", n.engram_shard, 0, 4095,
            "which part of the rows an engram node serves; nodes with the same one are replicas");
  v.integer("engram_shards", n.engram_shards, 1, 4096, "in how many parts the rows are cut");
  v.choice("engram_memory", n.engram_memory, {"mapped", "resident"},
           "of an engram node: rows are read when they are asked for, or all of them at its start");
}

}  // namespace cedar::config
