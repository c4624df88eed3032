#include "actors/errors.h"

#include <caf/atom.hpp>
#include <caf/exit_reason.hpp>
#include <caf/message.hpp>
#include <caf/sec.hpp>

namespace cedar::actors {
namespace {

constexpr caf::atom_value kCategory = caf::atom("cedar");

Errc errc_of_system_error(caf::sec code) {
  switch (code) {
    case caf::sec::request_timeout: return Errc::deadline_exceeded;
    case caf::sec::request_receiver_down:
    case caf::sec::remote_lookup_failed:
    case caf::sec::disconnect_during_handshake:
    case caf::sec::connection_timeout:
    case caf::sec::no_route_to_receiving_node:
    case caf::sec::cannot_connect_to_node: return Errc::unavailable;
    default: return Errc::internal;
  }
}

}  // namespace

caf::error to_caf(const Error& error) {
  return caf::error(static_cast<uint8_t>(error.code), kCategory, caf::make_message(error.context));
}

Error from_caf(const caf::error& error) {
  if (error.category() == kCategory) {
    std::string context;
    if (error.context().match_elements<std::string>()) {
      context = error.context().get_as<std::string>(0);
    }
    return make_error(static_cast<Errc>(error.code()), std::move(context));
  }
  if (error.category() == caf::atom("system")) {
    const auto code = static_cast<caf::sec>(error.code());
    return make_error(errc_of_system_error(code), to_string(code));
  }
  if (error.category() == caf::atom("exit")) {
    return make_error(Errc::unavailable,
                      "stage ended: " + to_string(static_cast<caf::exit_reason>(error.code())));
  }
  return make_error(Errc::internal, "unknown actor error");
}

}  // namespace cedar::actors
