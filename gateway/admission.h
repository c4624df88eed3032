#pragma once
// What a request's header must satisfy before its body is read: one Host, which is this server's, no page of another site
// behind it, a known API key, an encoding that is understood. Also which pages of other origins may look at the answer (CORS).

#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>

#include <optional>
#include <string>
#include <string_view>

#include "gateway/api_keys.h"
#include "gateway/context.h"
#include "gateway/http_writer.h"
#include "gateway/routes.h"

namespace cedar::gateway {

using RequestHeader = boost::beast::http::request_header<>;

struct Admission {
  KeyAccount* key = nullptr;  // null where no keys are asked for
  std::string allow_origin;   // for Access-Control-Allow-Origin; empty: the header is left out
};

/// Fills `admission`; returns why the request is refused.
std::optional<ApiError> admit(const RequestHeader& header, const Route& route,
                              const GatewayContext& context, Admission& admission);

/// The answer to a browser that asks whether a page of another origin may send a request. None: no such question, or
/// not with this configuration.
std::optional<HttpResponse> answer_preflight(const RequestHeader& header,
                                             const HttpOptions& options);

/// Whether pages of `origin` ("https://host:port") are configured to use this server.
bool origin_allowed(std::string_view origin, const HttpOptions& options);

}  // namespace cedar::gateway
