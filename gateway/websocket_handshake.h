#pragma once
// Which upgrade requests become WebSockets (RFC 6455 section 4.2; spec/api.md 6.1).

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include <optional>

#include "gateway/http_writer.h"
#include "gateway/options.h"

namespace cedar::gateway {

using UpgradeRequest = boost::beast::http::request<boost::beast::http::string_body>;

/// The protocol that this server speaks; a client must offer it.
constexpr const char* kStreamProtocol = "cedar.v1";

/// The answer to a request that may not become a WebSocket. Pages must be of the own origin or an allowed one.
std::optional<HttpResponse> refuse_upgrade(const UpgradeRequest& request,
                                           const HttpOptions& options);

}  // namespace cedar::gateway
