#pragma once
// One process of a cluster: a gateway's router and door, or stages and services that register at gateways, or both. No
// CAF type appears here.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/client.h"
#include "actors/node_service.h"
#include "actors/pipeline.h"
#include "actors/remote_engram.h"
#include "actors/system.h"
#include "core/result.h"
#include "engine/loaded_model.h"
#include "transport/options.h"
#include "transport/ucx.h"

namespace cedar::actors {

struct NodeAddress {
  std::string host;
  uint16_t port = 0;
};

struct ClusterNodeOptions {
  std::string cluster;
  std::string secret;
  std::string name;
  NodeId id;                // of the name
  uint64_t generation = 0;  // microseconds of the wall clock at the start
  // What the nodes must agree on (ModelIdentity in membership_messages.h).
  std::string kv_layout, model_config, weights;

  std::chrono::milliseconds heartbeat_interval{500};
  std::chrono::milliseconds lost_after{2000};
  std::chrono::milliseconds dial_interval{500};
  std::chrono::milliseconds handshake_timeout{3000};
  // TLS of the control plane, as PEM files; empty: none.
  std::string certificate, key, authority;

  int32_t max_replacements = 3;     // stages that a request may lose before it fails
  std::optional<NodeAddress> door;  // of a gateway: where nodes register
  struct Gateway {
    std::string name;
    NodeAddress address;
  };
  std::vector<Gateway> gateways;  // others, to register with

  bool encoder = false;
  // The encoder or decoder here is a rank of it; the model has that rank's layers.
  std::optional<PipelinePlace> encoder_pipeline, decoder_pipeline;
  bool decoder = false;
  bool cache = false;       // of system.cache
  int64_t block_bytes = 0;  // of the model's KV blocks
  std::vector<NodeServiceFactory> services;
  std::optional<RemoteEngramOptions> engram;  // the stages' rows come from services
  transport::TransportOptions data;           // identity and cluster are filled in
  transport::UcxOptions ucx;
  SystemOptions system;

  enum class Event : uint8_t { registered, lost, refused, stage_given_up };
  /// `gateway` is its name, or that of the stage; the error says why. From other threads; must not block.
  std::function<void(Event, const std::string& gateway, const Error&)> on_event;
};

class ClusterNode {
 public:
  /// `model` may be null for a node without stages. Errors: those of the engines, the services and the data plane, io_error when the
  /// door's address cannot be had.
  static Result<std::unique_ptr<ClusterNode>> start(
      std::shared_ptr<const engine::LoadedModel> model, const ClusterNodeOptions& options);
  /// Ends whatever is left. CAF 0.17 may wait for ever here: its actor system waits for the threads of detached actors,
  /// and in one end of fifty something of its middleman keeps a reference to a stage that has ended. A program that is
  /// about to end calls close() and leaves without this destructor.
  ~ClusterNode();
  ClusterNode(const ClusterNode&) = delete;
  ClusterNode& operator=(const ClusterNode&) = delete;

  /// REQUIRES: a gateway.
  Client& client();
  /// Any thread. At a gateway: every stage is up and requests are let in. Elsewhere: a gateway lists this node, and it does
  /// not drain.
  bool ready() const;
  /// 0 without stages and services.
  uint16_t data_port() const;

  /// Takes no new work and waits up to `grace` for what runs and until others use its services no more; a gateway then
  /// cancels the rest. Says goodbye. Blocks;
  /// call once.
  void drain(std::chrono::milliseconds grace);
  /// Ends every actor and the data plane. The client is of no use afterwards.
  void close();

  struct Impl;
  explicit ClusterNode(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace cedar::actors
