#pragma once
// The only place that knows which HTTP status an error has (spec/api.md section 5).

#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace cedar::gateway {

struct ApiError {
  int status = 500;
  std::string type;  // also the error's `code`
  std::string message;
  std::string param;      // the field to blame; empty: null
  int retry_after_s = 0;  // > 0: for the Retry-After header
};

/// A context of the form "field: problem" names its field in `param`.
ApiError to_api_error(const Error& error);
/// For refusals that HTTP itself makes.
ApiError http_error(int status, std::string_view message);
/// {"error": {...}}
std::string error_body(const ApiError& error);
/// The inner object, for events.
std::string error_object(const ApiError& error);

}  // namespace cedar::gateway
