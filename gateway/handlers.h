#pragma once
// What the endpoints do with a request's body, apart from sockets.

#include <string_view>

#include "gateway/context.h"
#include "gateway/http_writer.h"
#include "gateway/prepare.h"
#include "gateway/routes.h"

namespace cedar::gateway {

/// Body text to a prepared request. On a compute thread. Errors: those of the API.
Result<PreparedRequest> read_generate_request(ApiKind kind, std::string_view body,
                                              const ModelCard& card);
/// The same for a body that is parsed already.
Result<PreparedRequest> read_generate_json(ApiKind kind, Json body, const ModelCard& card);

/// /tokenize and /detokenize. On a compute thread.
HttpResponse tokenize(std::string_view body, const ModelCard& card);
HttpResponse detokenize(std::string_view body, const ModelCard& card);

/// What the actors say of themselves and of the nodes they know, and whether the gateway is ready.
void report_stats(const GatewayContext& context, monitoring::Metrics& metrics);

/// The endpoints without a body.
HttpResponse answer_get(const Route& route, GatewayContext& context);

}  // namespace cedar::gateway
