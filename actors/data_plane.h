#pragma once
// A process's place on the data plane, as its stages see it.

#include "actors/messages.h"
#include "transport/transport.h"

namespace cedar::actors {

struct DataPlane {
  transport::Transport* transport = nullptr;  // outlives the actors
  DataEndpoint endpoint;                      // where other processes reach it
};

/// `host` is how others reach this machine.
inline DataPlane make_data_plane(transport::Transport& transport, std::string host) {
  const transport::NodeIdentity identity = transport.identity();
  return {&transport,
          {std::move(host), transport.listen_port(), identity.node.value, identity.generation}};
}

inline transport::NodeIdentity identity_of(const DataEndpoint& endpoint) {
  return {NodeId(endpoint.node), endpoint.generation};
}

}  // namespace cedar::actors
