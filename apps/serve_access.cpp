#include "apps/serve_access.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/text_file.h"
#include "gateway/api_keys.h"

namespace cedar::apps {
namespace {

constexpr size_t kMinKeyCharacters = 16;
constexpr size_t kMaxKeyCharacters = 256;
constexpr size_t kMaxNameBytes = 64;

/// What an HTTP header and a WebSocket subprotocol can carry alike.
bool is_key(std::string_view key) {
  return key.size() >= kMinKeyCharacters && key.size() <= kMaxKeyCharacters &&
         std::all_of(key.begin(), key.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_' || c == '~';
         });
}

std::string first_line(const std::string& text) {
  std::string line = text.substr(0, text.find('\n'));
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

Result<gateway::KeyDigest> digest_of_key(const std::string& key, const std::string& where) {
  if (!is_key(key)) {
    return make_error(Errc::invalid_config,
                      where + " must hold a key of " + std::to_string(kMinKeyCharacters) + " to " +
                          std::to_string(kMaxKeyCharacters) + " characters of A-Z a-z 0-9 - . _ ~");
  }
  return gateway::digest_of(key);
}

Result<gateway::KeyDigest> read_digest(const config::KeySettings& key, const std::string& path) {
  const int sources =
      (key.sha256.empty() ? 0 : 1) + (key.file.empty() ? 0 : 1) + (key.env.empty() ? 0 : 1);
  if (sources != 1) {
    return make_error(Errc::invalid_config,
                      path + " must have exactly one of sha256, file and env");
  }
  if (!key.sha256.empty()) {
    auto digest = gateway::parse_digest(key.sha256);
    if (!digest) {
      return make_error(Errc::invalid_config, path + ".sha256 " + digest.error().context);
    }
    return digest;
  }
  if (!key.file.empty()) {
    const std::string where = path + ".file: " + key.file;
    const auto text = read_text_file(key.file);
    if (!text) {
      return make_error(Errc::invalid_config, path + ".file: " + text.error().context);
    }
    return digest_of_key(first_line(*text), where);
  }
  const std::string where = path + ".env: " + key.env;
  const char* value = std::getenv(key.env.c_str());
  if (value == nullptr) return make_error(Errc::invalid_config, where + " is not set");
  return digest_of_key(value, where);
}

bool is_origin(std::string_view text) {
  if (text == "*") return true;
  const size_t scheme = text.find("://");
  if (scheme == std::string_view::npos || scheme == 0) return false;
  const std::string_view host = text.substr(scheme + 3);
  return !host.empty() && host.find_first_of("/?# \t*") == std::string_view::npos;
}

}  // namespace

Result<std::vector<gateway::ApiKey>> read_api_keys(const std::vector<config::KeySettings>& keys) {
  std::vector<gateway::ApiKey> result;
  for (const config::KeySettings& settings : keys) {
    const std::string path = "keys[" + std::to_string(result.size()) + ']';
    if (settings.name.empty() || settings.name.size() > kMaxNameBytes) {
      return make_error(Errc::invalid_config,
                        path + ".name must have 1 to " + std::to_string(kMaxNameBytes) + " bytes");
    }
    gateway::ApiKey key;
    key.name = settings.name;
    CEDAR_TRY(key.digest, read_digest(settings, path));
    key.max_concurrent = settings.max_concurrent;
    key.requests_per_minute = settings.requests_per_minute;
    key.tokens_per_minute = settings.tokens_per_minute;
    for (const gateway::ApiKey& other : result) {
      if (other.name == key.name || other.digest == key.digest) {
        return make_error(Errc::invalid_config, path + " has the name or the key of \"" +
                                                    other.name + "\", which comes before it");
      }
    }
    result.push_back(std::move(key));
  }
  return result;
}

Status check_address(const std::string& host) {
  in6_addr address{};
  if (host == "localhost" || inet_pton(AF_INET, host.c_str(), &address) == 1 ||
      inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &address) == 1) {
    return {};
  }
  return make_error(Errc::invalid_config,
                    "http.host must be an IP address or localhost, got \"" + host + '"');
}

Status check_origins(const std::vector<std::string>& origins) {
  for (const std::string& origin : origins) {
    if (!is_origin(origin)) {
      return make_error(
          Errc::invalid_config,
          "http.allowed_origins must hold origins such as https://host:port, or *, got \"" +
              origin + '"');
    }
  }
  return {};
}

Status check_hosts(const std::vector<std::string>& hosts) {
  for (const std::string& host : hosts) {
    if (host.empty() || host.find_first_of("/?#:@ \t") != std::string::npos) {
      return make_error(
          Errc::invalid_config,
          "http.allowed_hosts must hold names such as cedar.example, without a port, or *, got \"" +
              host + '"');
    }
  }
  return {};
}

}  // namespace cedar::apps
