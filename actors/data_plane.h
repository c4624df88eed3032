#pragma once
// A process's place on the data plane, as its stages and services see it. No CAF type appears here.

#include <string>
#include <utility>

#include "transport/transport.h"

namespace cedar::transport {
class Calls;
}

namespace cedar::actors {

class ServiceDirectory;

/// Where a process listens on the data plane. Node and generation as its transport has them.
struct DataEndpoint {
  std::string host;  // numeric
  uint16_t port = 0;
  uint32_t node = 0;
  uint64_t generation = 0;
  friend bool operator==(const DataEndpoint&, const DataEndpoint&) = default;
};

struct DataPlane {
  transport::Transport* transport = nullptr;  // outlives the actors
  DataEndpoint endpoint;                      // where other processes reach it
  // Of a node of a cluster; they outlive the actors, too. Null in a process that is alone.
  transport::Calls* calls = nullptr;
  const ServiceDirectory* directory = nullptr;
};

/// `host` is how others reach this machine.
inline DataPlane make_data_plane(transport::Transport& transport, std::string host) {
  const transport::NodeIdentity identity = transport.identity();
  return {&transport,
          {std::move(host), transport.listen_port(), identity.node.value, identity.generation},
          nullptr,
          nullptr};
}

inline transport::NodeIdentity identity_of(const DataEndpoint& endpoint) {
  return {NodeId(endpoint.node), endpoint.generation};
}

}  // namespace cedar::actors
