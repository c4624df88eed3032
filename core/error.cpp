#include "core/error.h"

namespace cedar {

std::string_view to_string(Errc code) {
  switch (code) {
    case Errc::ok: return "ok";
    case Errc::invalid_argument: return "invalid_argument";
    case Errc::invalid_config: return "invalid_config";
    case Errc::invalid_checkpoint: return "invalid_checkpoint";
    case Errc::not_found: return "not_found";
    case Errc::io_error: return "io_error";
    case Errc::out_of_memory: return "out_of_memory";
    case Errc::overloaded: return "overloaded";
    case Errc::context_too_long: return "context_too_long";
    case Errc::deadline_exceeded: return "deadline_exceeded";
    case Errc::cancelled: return "cancelled";
    case Errc::unavailable: return "unavailable";
    case Errc::stale_generation: return "stale_generation";
    case Errc::checksum_mismatch: return "checksum_mismatch";
    case Errc::unsupported: return "unsupported";
    case Errc::internal: return "internal";
  }
  return "unknown";
}

bool retryable(Errc code) {
  switch (code) {
    case Errc::overloaded:
    case Errc::deadline_exceeded:
    case Errc::unavailable:
    case Errc::stale_generation:
    case Errc::checksum_mismatch: return true;
    default: return false;
  }
}

std::string Error::message() const {
  std::string text(to_string(code));
  if (!context.empty()) text.append(": ").append(context);
  return text;
}

}  // namespace cedar
