#pragma once
// How a node joins a gateway, stays, and leaves; and what the gateway tells its router about it. A node dials, a
// gateway waits: gateways need no list of nodes.
//
//   node -> gateway   Knock          -> Challenge | refusal     (its layout must never change: it carries the version)
//   node -> gateway   Hello          -> Welcome | refusal
//   node -> gateway   Heartbeat      -> HeartbeatReply          (known = false: register again)
//   node -> gateway   Goodbye
//
// Refusals are errors: unsupported (protocol, KV layout, model), invalid_argument (cluster, secret, name),
// stale_generation (a later life of this node has registered), overloaded (too many at once: try again).

#include <caf/meta/type_name.hpp>
#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "actors/engram_counts.h"
#include "actors/messages.h"
#include "actors/services.h"
#include "core/ids.h"

namespace caf {
class actor_system_config;
}

namespace cedar::actors {

/// Of the messages between nodes, stage messages included. Raise it when any of them changes.
inline constexpr uint32_t kControlProtocol = 4;

/// What one stage can hold; from the engine's options and pool.
struct StageCapacity {
  int64_t sequences = 0;
  int64_t blocks = 0;
  int64_t block_tokens = 0;
};

/// One life of one node, and what it offers. A null handle: the node has no such stage.
struct NodeDescription {
  std::string name;
  NodeId id;                // of the name
  uint64_t generation = 0;  // microseconds of the wall clock at its start
  std::string data_host;    // numeric; where its data plane listens
  uint16_t data_port = 0;
  EncoderStageActor encoder;
  StageCapacity encoder_capacity;
  DecoderStageActor decoder;
  StageCapacity decoder_capacity;
  std::vector<Service> services;
  KvCacheActor cache;
  /// Of the model whose KV blocks the encoder computes: part of their keys. Empty: they are not for a cache.
  std::string fingerprint;
};

/// What the nodes of a cluster must agree on. Texts are compared and shown as they are.
struct ModelIdentity {
  std::string layout;   // of KV blocks
  std::string config;   // digest of config.json
  std::string weights;  // digest of a sample of the weights; empty at a node that has none
};

struct Knock {
  uint32_t protocol = kControlProtocol;
  std::string cluster;
  std::string node;
  std::string nonce;  // for the gateway's proof
};
struct Challenge {
  std::string nonce;
  std::string proof;  // that the gateway knows the secret
};
struct Hello {
  NodeDescription node;
  ModelIdentity model;
  std::string nonce;  // of the challenge
  std::string proof;  // that the node knows the secret
  caf::strong_actor_ptr member;
};
struct Welcome {
  std::string gateway;
  Directory directory;
};
/// What a node's stages hold now.
struct NodeLoad {
  int64_t encoder_requests = 0;
  int64_t encoder_queued_tokens = 0;
  int64_t encoder_free_blocks = 0;
  int64_t decoder_sequences = 0;
  int64_t decoder_free_blocks = 0;
  int64_t decoder_total_blocks = 0;
  EngramCounts engram;
};
struct Heartbeat {
  std::string node;
  uint64_t generation = 0;
  bool draining = false;  // give it no new work
  NodeLoad load;
  uint64_t directory = 0;  // the version that the node has
};
struct HeartbeatReply {
  bool known = false;
  Directory directory;  // empty, version 0: the node has the newest
};
struct Goodbye {
  std::string node;
  uint64_t generation = 0;
};

/// A gateway's door.
using RegistryActor =
    caf::typed_actor<caf::replies_to<Knock>::with<Challenge>, caf::replies_to<Hello>::with<Welcome>,
                     caf::replies_to<Heartbeat>::with<HeartbeatReply>, caf::reacts_to<Goodbye>,
                     caf::reacts_to<TickAtom>>;

// --- from whoever knows of nodes to the router, in one process -------------------------------------------

/// Replaces what was known of a node of this name.
struct NodeJoined {
  NodeDescription node;
};
/// Its handles are of no use any more. A later life may have joined meanwhile: then the message means nothing.
struct NodeLeft {
  std::string name;
  uint64_t generation = 0;
  bool for_good = false;  // nobody waits for its return
};
struct NodeReport {
  std::string name;
  uint64_t generation = 0;
  bool draining = false;
  NodeLoad load;
};

using NodeListener = caf::typed_actor<caf::reacts_to<NodeJoined>, caf::reacts_to<NodeLeft>,
                                      caf::reacts_to<NodeReport>>;

void add_membership_types(caf::actor_system_config& config);

// --- inspection ------------------------------------------------------------------------------------------

template <class I>
typename I::result_type inspect(I& f, StageCapacity& x) {
  return f(caf::meta::type_name("StageCapacity"), x.sequences, x.blocks, x.block_tokens);
}
template <class I>
typename I::result_type inspect(I& f, Service& x) {
  auto role = static_cast<uint8_t>(x.role);
  auto load = [&]() -> caf::error {
    x.role = static_cast<ServiceRole>(role);  // one that is not known is never asked for
    return caf::none;
  };
  return f(caf::meta::type_name("Service"), role, x.shard, x.shards, x.detail,
           caf::meta::load_callback(load));
}
template <class I>
typename I::result_type inspect(I& f, DirectoryEntry& x) {
  return f(caf::meta::type_name("DirectoryEntry"), x.node, x.endpoint, x.services);
}
template <class I>
typename I::result_type inspect(I& f, Directory& x) {
  return f(caf::meta::type_name("Directory"), x.version, x.entries);
}

template <class I>
typename I::result_type inspect(I& f, NodeDescription& x) {
  return f(caf::meta::type_name("NodeDescription"), x.name, x.id, x.generation, x.data_host,
           x.data_port, x.encoder, x.encoder_capacity, x.decoder, x.decoder_capacity, x.services,
           x.cache, x.fingerprint);
}
template <class I>
typename I::result_type inspect(I& f, ModelIdentity& x) {
  return f(caf::meta::type_name("ModelIdentity"), x.layout, x.config, x.weights);
}
template <class I>
typename I::result_type inspect(I& f, Knock& x) {
  return f(caf::meta::type_name("Knock"), x.protocol, x.cluster, x.node, x.nonce);
}
template <class I>
typename I::result_type inspect(I& f, Challenge& x) {
  return f(caf::meta::type_name("Challenge"), x.nonce, x.proof);
}
template <class I>
typename I::result_type inspect(I& f, Hello& x) {
  return f(caf::meta::type_name("Hello"), x.node, x.model, x.nonce, x.proof, x.member);
}
template <class I>
typename I::result_type inspect(I& f, Welcome& x) {
  return f(caf::meta::type_name("Welcome"), x.gateway, x.directory);
}
template <class I>
typename I::result_type inspect(I& f, EngramCounts& x) {
  return f(caf::meta::type_name("EngramCounts"), x.hits, x.ahead, x.late, x.misses,
           x.failed_fetches);
}
template <class I>
typename I::result_type inspect(I& f, NodeLoad& x) {
  return f(caf::meta::type_name("NodeLoad"), x.encoder_requests, x.encoder_queued_tokens,
           x.encoder_free_blocks, x.decoder_sequences, x.decoder_free_blocks,
           x.decoder_total_blocks, x.engram);
}
template <class I>
typename I::result_type inspect(I& f, Heartbeat& x) {
  return f(caf::meta::type_name("Heartbeat"), x.node, x.generation, x.draining, x.load,
           x.directory);
}
template <class I>
typename I::result_type inspect(I& f, HeartbeatReply& x) {
  return f(caf::meta::type_name("HeartbeatReply"), x.known, x.directory);
}
template <class I>
typename I::result_type inspect(I& f, Goodbye& x) {
  return f(caf::meta::type_name("Goodbye"), x.node, x.generation);
}
template <class I>
typename I::result_type inspect(I& f, NodeJoined& x) {
  return f(caf::meta::type_name("NodeJoined"), x.node);
}
template <class I>
typename I::result_type inspect(I& f, NodeLeft& x) {
  return f(caf::meta::type_name("NodeLeft"), x.name, x.generation, x.for_good);
}
template <class I>
typename I::result_type inspect(I& f, NodeReport& x) {
  return f(caf::meta::type_name("NodeReport"), x.name, x.generation, x.draining, x.load);
}

}  // namespace cedar::actors
