#pragma once
// The address of a WebSocket server.

#include <string>

#include "core/result.h"

namespace cedar::apps {

struct WsUrl {
  bool secure = false;  // wss
  std::string host;     // an IPv6 address without its brackets
  std::string port;
  std::string path;  // with the query

  /// "host:port" as a header wants it.
  std::string authority() const;
  /// The whole address.
  std::string text() const;
};

/// "ws://host[:port][/path][?query]" or the same with wss, an IPv6 address in brackets; the port defaults to 80 and 443,
/// the path to /v1/stream. Errors: invalid_argument.
Result<WsUrl> parse_ws_url(const std::string& url);

}  // namespace cedar::apps
