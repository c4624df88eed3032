#include "gateway/routes.h"

#include <algorithm>

namespace cedar::gateway {
namespace {

struct Row {
  std::string_view method;
  std::string_view path;
  Endpoint endpoint;
  monitoring::Route label;
};

constexpr Row kRows[] = {
    {"POST", "/v1/chat/completions", Endpoint::chat_completions, monitoring::Route::chat},
    {"POST", "/chat/completions", Endpoint::chat_completions, monitoring::Route::chat},
    {"POST", "/v1/completions", Endpoint::completions, monitoring::Route::completions},
    {"POST", "/completions", Endpoint::completions, monitoring::Route::completions},
    {"GET", "/v1/models", Endpoint::models, monitoring::Route::models},
    {"GET", "/models", Endpoint::models, monitoring::Route::models},
    {"POST", "/tokenize", Endpoint::tokenize, monitoring::Route::tokens},
    {"POST", "/detokenize", Endpoint::detokenize, monitoring::Route::tokens},
    {"GET", "/health", Endpoint::health, monitoring::Route::probes},
    {"GET", "/livez", Endpoint::alive, monitoring::Route::probes},
    {"GET", "/ping", Endpoint::health, monitoring::Route::probes},
    {"GET", "/ready", Endpoint::ready, monitoring::Route::probes},
    {"GET", "/readyz", Endpoint::ready, monitoring::Route::probes},
    {"GET", "/version", Endpoint::version, monitoring::Route::probes},
    {"GET", "/metrics", Endpoint::metrics, monitoring::Route::metrics},
    {"GET", "/debug/requests", Endpoint::debug_requests, monitoring::Route::debug},
    {"GET", "/", Endpoint::page, monitoring::Route::page},
    {"GET", "/v1/stream", Endpoint::stream, monitoring::Route::stream},
};

constexpr std::string_view kModelPrefix = "/v1/models/";

bool method_fits(std::string_view asked, std::string_view offered) {
  return asked == offered || (asked == "HEAD" && offered == "GET");
}

/// The path of a target in origin-form, or in absolute-form, which proxies send ("http://host/path").
std::string_view path_of(std::string_view target) {
  const size_t scheme = target.find("://");
  if (scheme != std::string_view::npos && scheme < target.find('/')) {
    target.remove_prefix(scheme + 3);
    target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
  }
  const std::string_view path = target.substr(0, target.find('?'));
  return path.empty() ? "/" : path;
}

}  // namespace

bool is_work(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::chat_completions:
    case Endpoint::completions:
    case Endpoint::tokenize:
    case Endpoint::detokenize:
    case Endpoint::stream: return true;
    default: return false;
  }
}

Route find_route(std::string_view method, std::string_view target) {
  const std::string_view path = path_of(target);
  for (const Row& row : kRows) {
    if (path != row.path) continue;
    if (method_fits(method, row.method)) return {row.endpoint, row.label, {}};
    const std::string allowed = row.method == "GET" ? "GET, HEAD" : std::string(row.method);
    return {Endpoint::wrong_method, row.label, allowed};
  }
  if (path.size() > kModelPrefix.size() && path.substr(0, kModelPrefix.size()) == kModelPrefix) {
    if (!method_fits(method, "GET")) {
      return {Endpoint::wrong_method, monitoring::Route::models, "GET, HEAD"};
    }
    return {Endpoint::model, monitoring::Route::models,
            std::string(path.substr(kModelPrefix.size()))};
  }
  return {};
}

}  // namespace cedar::gateway
