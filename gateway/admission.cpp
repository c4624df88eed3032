#include "gateway/admission.h"

#include <boost/asio/ip/address.hpp>
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

/// Whether the end of the body is known for certain. The parser takes a coding that it does not know for "no body", after
/// which the body would be read as further requests (RFC 9112, section 6.3).
bool framing_is_clear(const RequestHeader& header) {
  const size_t codings = header.count(http::field::transfer_encoding);
  if (codings == 0) return true;
  return codings == 1 && header.version() >= 11 &&
         beast::iequals(header[http::field::transfer_encoding], "chunked");
}

/// "localhost" of "localhost:8080", "::1" of "[::1]:8080".
std::string_view host_name(std::string_view host) {
  if (!host.empty() && host.front() == '[') return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

bool is_loopback(std::string_view host) {
  if (beast::iequals({host.data(), host.size()}, "localhost")) return true;
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(std::string(host), error);
  return !error && address.is_loopback();
}

/// A server that only this machine can reach trusts whoever reaches it, and the pages in this machine's browsers do: those
/// of a site whose name was made to point here (DNS rebinding) are of the same origin as this server, under that name.
bool host_fits(const RequestHeader& header, const GatewayContext& context) {
  if (context.keys.required() || !is_loopback(context.options.http.host)) return true;
  const auto field = header.find(http::field::host);
  if (field == header.end()) return true;  // HTTP/1.0, no browser
  const std::string_view name = host_name(view(field->value()));
  const auto& allowed = context.options.http.allowed_hosts;
  return is_loopback(name) ||
         std::any_of(allowed.begin(), allowed.end(), [&](const std::string& one) {
           return one == "*" ||
                  beast::iequals({one.data(), one.size()}, {name.data(), name.size()});
         });
}

/// False for what a page of another site sends: browsers send some requests without asking first.
bool origin_fits(const RequestHeader& header, const HttpOptions& options) {
  if (header.method() != http::verb::post) return true;
  const auto field = header.find(http::field::origin);
  if (field == header.end()) return true;  // no browser
  const std::string_view origin = view(field->value());
  if (header.count(http::field::origin) > 1) return false;
  if (origin_allowed(origin, options)) return true;
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return false;
  const auto name = field->value().substr(0, scheme);
  return (beast::iequals(name, "http") || beast::iequals(name, "https")) &&
         beast::iequals(field->value().substr(scheme + 3), header[http::field::host]);
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
    case Endpoint::model:
    case Endpoint::debug_requests: return true;
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
  if (!framing_is_clear(header)) {
    return http_error(400, "Transfer-Encoding must be chunked, once and alone, in HTTP/1.1");
  }
  const size_t hosts = header.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && header.version() >= 11)) {
    return http_error(400, "a request must have one Host header");
  }
  if (!host_fits(header, context)) {
    return http_error(403, "Host is no name of this server: see http.allowed_hosts");
  }
  if (!origin_fits(header, context.options.http)) {
    return http_error(403, "pages of another origin may not ask: see http.allowed_origins");
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
