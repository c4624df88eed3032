#include "gateway/admission.h"

#include <boost/beast/http/rfc7230.hpp>

#include <algorithm>
#include <cctype>

namespace cedar::gateway {

namespace beast = boost::beast;
namespace http = boost::beast::http;

namespace {

constexpr std::string_view kScheme = "bearer ";
constexpr std::string_view kKeyProtocol = "bearer.";

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// The key of "Authorization: Bearer KEY"; for WebSockets also that of a protocol "bearer.KEY", because pages cannot set
/// headers there. Empty: none, or several.
std::string presented_key(const RequestHeader& header, Endpoint endpoint) {
  const size_t given = header.count(http::field::authorization);
  if (given > 1) return {};
  if (given == 1) {
    const std::string_view value = view(header[http::field::authorization]);
    const bool bearer =
        value.size() > kScheme.size() &&
        beast::iequals({value.data(), kScheme.size()}, {kScheme.data(), kScheme.size()});
    return bearer ? std::string(trimmed(value.substr(kScheme.size()))) : std::string();
  }
  if (endpoint != Endpoint::stream) return {};
  std::string key;
  for (const auto& field : header) {
    if (field.name() != http::field::sec_websocket_protocol) continue;
    for (const auto& token : http::token_list(field.value())) {
      const std::string_view protocol = view(token);
      if (protocol.rfind(kKeyProtocol, 0) != 0) continue;
      if (!key.empty()) return {};
      key = protocol.substr(kKeyProtocol.size());
    }
  }
  return key;
}

bool needs_key(Endpoint endpoint, const GatewayContext& context) {
  if (!context.keys.required()) return false;
  switch (endpoint) {
    case Endpoint::models:
    case Endpoint::model: return true;
    case Endpoint::metrics: return context.options.http.metrics_need_key;
    default: return is_work(endpoint);
  }
}

bool is_header_name_list(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == ',' || c == ' ';
  });
}

}  // namespace

bool origin_allowed(std::string_view origin, const HttpOptions& options) {
  return std::any_of(
      options.allowed_origins.begin(), options.allowed_origins.end(), [&](const std::string& one) {
        return one == "*" ||
               beast::iequals({one.data(), one.size()}, {origin.data(), origin.size()});
      });
}

std::optional<ApiError> admit(const RequestHeader& header, const Route& route,
                              const GatewayContext& context, Admission& admission) {
  admission = {};
  // First, so that a page can read why it is refused.
  const std::string_view origin = view(header[http::field::origin]);
  if (!origin.empty() && origin_allowed(origin, context.options.http)) {
    admission.allow_origin = origin;
  }
  if (header.version() >= 11 && header.count(http::field::host) != 1) {
    return http_error(400, "an HTTP/1.1 request must have one Host header");
  }
  if (needs_key(route.endpoint, context)) {
    const std::string key = presented_key(header, route.endpoint);
    if (key.empty()) {
      return http_error(401, "an API key is needed: send it as \"Authorization: Bearer KEY\"");
    }
    admission.key = context.keys.find(key);
    if (admission.key == nullptr) return http_error(401, "the API key is not a known one");
  }
  const std::string_view encoding = trimmed(view(header[http::field::content_encoding]));
  if (!encoding.empty() && !beast::iequals({encoding.data(), encoding.size()}, "identity")) {
    return http_error(415, "Content-Encoding is not supported: send the body as it is");
  }
  return std::nullopt;
}

std::optional<HttpResponse> answer_preflight(const RequestHeader& header,
                                             const HttpOptions& options) {
  if (header.method() != http::verb::options) return std::nullopt;
  const std::string_view origin = view(header[http::field::origin]);
  if (origin.empty() || header.count(http::field::access_control_request_method) == 0) {
    return std::nullopt;
  }
  if (!origin_allowed(origin, options)) return std::nullopt;
  HttpResponse response;
  response.status = 204;
  response.headers.emplace_back("Access-Control-Allow-Methods", "GET, HEAD, POST");
  // What it asks for: SDKs send many headers of their own, and none of them means anything here.
  const std::string_view asked = view(header[http::field::access_control_request_headers]);
  if (!asked.empty() && is_header_name_list(asked)) {
    response.headers.emplace_back("Access-Control-Allow-Headers", std::string(asked));
  }
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

}  // namespace cedar::gateway
