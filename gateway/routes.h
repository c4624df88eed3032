#pragma once
// Method and path to what is asked for.

#include <cstdint>
#include <string>
#include <string_view>

#include "monitoring/metrics.h"

namespace cedar::gateway {

enum class Endpoint : uint8_t {
  chat_completions,
  completions,
  models,
  model,  // Route::argument is its id
  tokenize,
  detokenize,
  alive,
  health,
  ready,
  version,
  metrics,
  debug_requests,
  page,
  stream,  // WebSocket
  unknown,
  wrong_method,  // Route::argument lists the allowed ones
};

struct Route {
  Endpoint endpoint = Endpoint::unknown;
  monitoring::Route label = monitoring::Route::unknown;
  std::string argument;
};

/// Whether the endpoint does work that a server which stops takes no more.
bool is_work(Endpoint endpoint);

/// `target`: in origin-form or absolute-form; may carry a query, which no endpoint uses.
Route find_route(std::string_view method, std::string_view target);

}  // namespace cedar::gateway
