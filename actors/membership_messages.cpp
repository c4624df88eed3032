#include "actors/membership_messages.h"

#include <caf/actor_system_config.hpp>

namespace cedar::actors {

void add_membership_types(caf::actor_system_config& config) {
  config.add_message_type<Knock>("cedar.Knock")
      .add_message_type<Challenge>("cedar.Challenge")
      .add_message_type<Hello>("cedar.Hello")
      .add_message_type<Welcome>("cedar.Welcome")
      .add_message_type<Heartbeat>("cedar.Heartbeat")
      .add_message_type<HeartbeatReply>("cedar.HeartbeatReply")
      .add_message_type<Goodbye>("cedar.Goodbye")
      .add_message_type<NodeJoined>("cedar.NodeJoined")
      .add_message_type<NodeLeft>("cedar.NodeLeft")
      .add_message_type<NodeReport>("cedar.NodeReport");
}

}  // namespace cedar::actors
