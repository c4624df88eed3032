#pragma once
// The control plane between processes: CAF's BASP, plain or through OpenSSL. Everything else in this room is the same
// whether an actor is here or at another node.

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/io/middleman_actor.hpp>

#include <chrono>
#include <cstdint>
#include <string>

#include "actors/membership_messages.h"
#include "core/result.h"

namespace cedar::actors {

struct NetworkOptions {
  std::chrono::milliseconds heartbeat_interval{500};
  std::chrono::milliseconds lost_after{2000};
  bool tls = false;
  // PEM files. A peer whose certificate `authority` has not signed is refused, whichever side it is on.
  std::string certificate, key, authority;
};

/// Before the actor system is made. CAF watches no connection by default; here silence ends it.
void configure_network(caf::actor_system_config& config, const NetworkOptions& options);

/// Lets other processes find `door` at host:port; the port in use. Errors: io_error.
Result<uint16_t> publish(caf::actor_system& system, const RegistryActor& door,
                         const std::string& host, uint16_t port);

/// The actor that makes connections, encrypted if the system was configured so.
caf::io::middleman_actor connector(caf::actor_system& system);

/// Whether something accepts connections at host:port. Blocks for at most `limit`: CAF's own attempt to reach a host
/// that does not answer would block all others for minutes. Errors: unavailable, naming address and reason.
Status probe(const std::string& host, uint16_t port, std::chrono::milliseconds limit);

/// A host name as a numeric address. Errors: unavailable.
Result<std::string> numeric_address(const std::string& host);

}  // namespace cedar::actors
