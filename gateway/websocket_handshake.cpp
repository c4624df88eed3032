#include "gateway/websocket_handshake.h"

#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/websocket/rfc6455.hpp>

#include <utility>

#include "gateway/admission.h"
#include "gateway/error_mapping.h"
#include "gateway/sse.h"

namespace cedar::gateway {

namespace beast = boost::beast;
namespace http = boost::beast::http;

namespace {

bool offers_protocol(const UpgradeRequest& request) {
  for (const auto& field : request) {
    if (field.name() != http::field::sec_websocket_protocol) continue;
    for (const auto& token : http::token_list(field.value())) {
      if (token == kStreamProtocol) return true;
    }
  }
  return false;
}

/// False for a browser page of another origin: such a page could act in its visitor's name. Where this server does
/// not encrypt, a proxy before it may, so a page of either scheme can be its own.
bool same_origin(const UpgradeRequest& request, const HttpOptions& options) {
  const auto origin = request.find(http::field::origin);
  if (origin == request.end()) return true;  // no browser
  const auto host = request[http::field::host];
  const auto value = origin->value();
  const size_t end = value.find("://");
  if (end == beast::string_view::npos) return false;
  const auto scheme = value.substr(0, end);
  const bool plain = options.tls_certificate.empty() && beast::iequals(scheme, "http");
  return (plain || beast::iequals(scheme, "https")) && beast::iequals(value.substr(end + 3), host);
}

/// 16 bytes in base64.
bool is_key(beast::string_view key) { return key.size() == 24 && key.ends_with("=="); }

HttpResponse refusal(int status, std::string_view message, const char* header = nullptr,
                     const char* value = nullptr) {
  HttpResponse response = error_response(http_error(status, message));
  if (header != nullptr) response.headers.emplace_back(header, value);
  return response;
}

}  // namespace

std::optional<HttpResponse> refuse_upgrade(const UpgradeRequest& request,
                                           const HttpOptions& options) {
  if (!beast::websocket::is_upgrade(request)) {
    return refusal(426, "this path speaks WebSocket only", "Upgrade", "websocket");
  }
  if (request[http::field::sec_websocket_version] != "13") {
    return refusal(426, "Sec-WebSocket-Version must be 13", "Sec-WebSocket-Version", "13");
  }
  if (!is_key(request[http::field::sec_websocket_key])) {
    return refusal(400, "Sec-WebSocket-Key must be 16 bytes in base64");
  }
  if (!offers_protocol(request)) {
    return refusal(400, "Sec-WebSocket-Protocol must offer cedar.v1");
  }
  if (request.count(http::field::origin) > 1) {
    return refusal(400, "a request must not have several Origin headers");
  }
  const auto origin = request[http::field::origin];
  if (!same_origin(request, options) && !origin_allowed({origin.data(), origin.size()}, options)) {
    return refusal(403, "pages of another origin may not connect");
  }
  return std::nullopt;
}

}  // namespace cedar::gateway
