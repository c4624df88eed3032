#pragma once
// The address of a WebSocket server.

#include <string>

#include "core/result.h"

namespace cedar::apps {

struct WsUrl {
  std::string host;  // an IPv6 address without its brackets
  std::string port;
  std::string path;  // with the query

  /// "host:port" as a header wants it.
  std::string authority() const;
};

/// "ws://host[:port][/path][?query]", an IPv6 address in brackets; the path defaults to /v1/stream. Errors:
/// invalid_argument, unsupported (wss).
Result<WsUrl> parse_ws_url(const std::string& url);

}  // namespace cedar::apps
