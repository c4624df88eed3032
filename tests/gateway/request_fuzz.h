#pragma once
// What every request body must lead to, however broken it is: a prepared request or an error of the client's
// side. Shared by the property test and the libFuzzer target.

#include <string_view>

#include "gateway/error_mapping.h"
#include "gateway/prepare.h"

namespace cedar::gateway {

/// 0 when the body is accepted, else the HTTP status that the client gets.
inline int check_body(std::string_view text, const ModelCard& card, bool chat) {
  const auto run = [&]() -> Result<PreparedRequest> {
    CEDAR_TRY(Json body, read_body(text));
    if (chat) {
      CEDAR_TRY(ApiRequest request, read_chat_request(std::move(body), card));
      return prepare(std::move(request), card, 1);
    }
    CEDAR_TRY(ApiRequest request, read_completion_request(body, card));
    return prepare(std::move(request), card, 1);
  };
  const auto prepared = run();
  if (prepared) {
    CEDAR_ASSERT(!prepared->prompt.empty() && prepared->max_new_tokens >= 1,
                 "empty request accepted");
    return 0;
  }
  const ApiError error = to_api_error(prepared.error());
  CEDAR_ASSERT(Json::accept(error_body(error)), "error body is no JSON");
  return error.status;
}

}  // namespace cedar::gateway
