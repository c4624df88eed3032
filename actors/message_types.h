#pragma once
// Every message that may come from another process.

#include <caf/actor_system_config.hpp>

namespace cedar::actors {

/// To be called before an actor system is made from `config`, in every process of a cluster.
void add_message_types(caf::actor_system_config& config);

}  // namespace cedar::actors
