#pragma once
// Offers and descriptors, and how callbacks of the data plane become messages.

#include <caf/actor.hpp>
#include <caf/actor_addr.hpp>
#include <caf/actor_cast.hpp>
#include <caf/send.hpp>

#include <utility>

#include "actors/data_plane.h"
#include "actors/messages.h"

namespace cedar::actors {

Offer make_offer(const transport::RegionDescriptor& descriptor, const DataEndpoint& owner);
/// Errors: those of transport::parse_descriptor; invalid_argument when it speaks of another owner.
Result<transport::RegionDescriptor> descriptor_of(const Offer& offer);

/// A callback of the data plane as a message to the actor, if that lives.
template <class Message>
void tell(const caf::actor_addr& to, Message message) {
  if (auto actor = caf::actor_cast<caf::actor>(to)) caf::anon_send(actor, std::move(message));
}

/// A status in a message: the code ok when all went well.
inline Error outcome(const Status& status) { return status ? Error{Errc::ok, {}} : status.error(); }
inline Status outcome(const Error& error) {
  return error.code == Errc::ok ? Status{} : Status{error};
}

}  // namespace cedar::actors
