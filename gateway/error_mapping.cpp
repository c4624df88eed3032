#include "gateway/error_mapping.h"

#include <cctype>
#include <string_view>

#include "gateway/answer_json.h"
#include "model/utf8.h"

namespace cedar::gateway {
namespace {

const char* type_of_status(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return status >= 500 ? "internal_error" : "invalid_request_error";
  }
}

int status_of(Errc code) {
  switch (code) {
    case Errc::invalid_argument:
    case Errc::context_too_long:
    case Errc::unsupported: return 400;
    case Errc::not_found: return 404;
    case Errc::overloaded:
    case Errc::unavailable: return 503;
    case Errc::deadline_exceeded: return 504;
    case Errc::cancelled: return 499;
    default: return 500;
  }
}

/// "messages[2].content" of "messages[2].content: must be ...".
std::string field_of(std::string_view context) {
  const size_t colon = context.find(": ");
  if (colon == std::string_view::npos || colon == 0) return {};
  for (char c : context.substr(0, colon)) {
    const bool allowed = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' ||
                         c == '[' || c == ']';
    if (!allowed) return {};
  }
  return std::string(context.substr(0, colon));
}

}  // namespace

ApiError http_error(int status, std::string_view message) {
  ApiError error;
  error.status = status;
  error.type = type_of_status(status);
  error.message = model::sanitize_utf8(message);
  if (status == 503 || status == 429) error.retry_after_s = 1;
  return error;
}

ApiError to_api_error(const Error& error) {
  ApiError result = http_error(status_of(error.code), error.context);
  if (result.message.empty()) result.message = std::string(to_string(error.code));
  if (result.status < 500) result.param = field_of(error.context);
  return result;
}

std::string error_object(const ApiError& error) {
  std::string text =
      R"({"message":)" + json_string(error.message) + R"(,"type":)" + json_string(error.type);
  text += R"(,"param":)" + (error.param.empty() ? std::string("null") : json_string(error.param));
  text += R"(,"code":)" + json_string(error.type) + '}';
  return text;
}

std::string error_body(const ApiError& error) { return R"({"error":)" + error_object(error) + '}'; }

}  // namespace cedar::gateway
