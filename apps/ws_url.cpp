#include "apps/ws_url.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "apps/terminal_text.h"

namespace cedar::apps {
namespace {

constexpr std::string_view kPlain = "ws://";
constexpr std::string_view kSecure = "wss://";
constexpr const char* kDefaultPath = "/v1/stream";

Error bad_url(const std::string& problem, const std::string& url) {
  return make_error(Errc::invalid_argument, "url: " + problem + ", got " + printable(url));
}

bool is_port(std::string_view text) {
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port > 0;
}

}  // namespace

std::string WsUrl::authority() const {
  return (host.find(':') == std::string::npos ? host : '[' + host + ']') + ':' + port;
}

std::string WsUrl::text() const {
  return std::string(secure ? kSecure : kPlain) + authority() + path;
}

Result<WsUrl> parse_ws_url(const std::string& url) {
  WsUrl result;
  result.secure = url.rfind(kSecure, 0) == 0;
  if (!result.secure && url.rfind(kPlain, 0) != 0) {
    return bad_url("must begin with ws:// or wss://", url);
  }
  const auto breaks = [](unsigned char c) { return c <= ' ' || c == 0x7F; };
  if (std::any_of(url.begin(), url.end(), breaks)) {
    return bad_url("must hold no spaces and control characters", url);
  }
  if (url.find('#') != std::string::npos) return bad_url("must have no fragment (#)", url);
  const std::string rest = url.substr((result.secure ? kSecure : kPlain).size());
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  std::string authority = rest.substr(0, end);
  if (authority.find('@') != std::string::npos) return bad_url("must name no user (@)", url);

  if (authority.rfind('[', 0) == 0) {
    const size_t bracket = authority.find(']');
    if (bracket == std::string::npos) return bad_url("the address lacks its closing ]", url);
    result.host = authority.substr(1, bracket - 1);
    authority.erase(0, bracket + 1);
  } else {
    if (std::count(authority.begin(), authority.end(), ':') > 1) {
      return bad_url("an IPv6 address must be in brackets (ws://[::1]:8080)", url);
    }
    const size_t colon = std::min(authority.find(':'), authority.size());
    result.host = authority.substr(0, colon);
    authority.erase(0, colon);
  }
  if (result.host.empty()) return bad_url("names no host", url);
  const char* usual = result.secure ? "443" : "80";
  result.port = authority.empty() ? usual : authority.substr(1);
  if ((!authority.empty() && authority[0] != ':') || !is_port(result.port)) {
    return bad_url("the port must be in [1, 65535]", url);
  }
  result.path = rest.substr(end);
  if (result.path.empty() || result.path == "/") result.path = kDefaultPath;
  if (result.path[0] == '?') result.path.insert(0, kDefaultPath);
  return result;
}

}  // namespace cedar::apps
