#include "gateway/handlers.h"

#include <utility>

#include "gateway/answer_json.h"
#include "gateway/sse.h"

namespace cedar::gateway {
namespace {

/// The longest context any checkpoint of the family has; bounds the work of one call.
constexpr size_t kMaxDetokenizeBytes = size_t{64} << 20;

HttpResponse refuse(const Error& error) { return error_response(to_api_error(error)); }

std::string list_of(const std::vector<TokenId>& ids) {
  std::string text = "[";
  for (const TokenId id : ids) {
    if (text.size() > 1) text += ',';
    text += std::to_string(id);
  }
  return text + ']';
}

Result<std::vector<TokenId>> tokens_of(Json body, const ModelCard& card) {
  if (!body.contains("messages")) {
    FieldReader fields(body);
    if (fields.find("prompt") == nullptr) fields.complain("prompt", "is missing");
    std::string text;
    fields.text("prompt", SIZE_MAX, text);
    CEDAR_CHECK_OK(fields.status());
    return card.tokenizer->encode(text);
  }
  CEDAR_TRY(ApiRequest request, read_chat_request(std::move(body), card));
  request.max_tokens.reset();  // only the prompt counts here
  CEDAR_TRY(PreparedRequest prepared, prepare(std::move(request), card, 0));
  return std::move(prepared.prompt);
}

std::string status_json(bool ok) {
  return ok ? R"({"status":"ok"})" : R"({"status":"unavailable"})";
}

monitoring::PipelineGauges gauges_of(const actors::Stats& stats) {
  monitoring::PipelineGauges gauges;
  gauges.queued_requests = stats.queued;
  gauges.running_requests = stats.running;
  gauges.live_actors = stats.live_actors;
  gauges.encoder_requests = stats.encoder_requests;
  gauges.encoder_queued_tokens = stats.encoder_queued_tokens;
  gauges.encoder_free_blocks = stats.encoder_free_blocks;
  gauges.decoder_sequences = stats.decoder_sequences;
  gauges.decoder_free_blocks = stats.decoder_free_blocks;
  gauges.decoder_total_blocks = stats.decoder_total_blocks;
  gauges.engram_rows = {stats.engram.hits, stats.engram.ahead, stats.engram.late,
                        stats.engram.misses};
  gauges.engram_failed_fetches = stats.engram.failed_fetches;
  gauges.ready = stats.ready;
  return gauges;
}

}  // namespace

Result<PreparedRequest> read_generate_request(ApiKind kind, std::string_view body,
                                              const ModelCard& card) {
  CEDAR_TRY(Json json, read_body(body));
  return read_generate_json(kind, std::move(json), card);
}

Result<PreparedRequest> read_generate_json(ApiKind kind, Json body, const ModelCard& card) {
  auto request = kind == ApiKind::chat ? read_chat_request(std::move(body), card)
                                       : read_completion_request(body, card);
  if (!request) return request.error();
  // 53 bits: clients read the seed back from JSON, where more would be rounded.
  return prepare(std::move(*request), card, random_seed() >> 11);
}

HttpResponse tokenize(std::string_view body, const ModelCard& card) {
  auto json = read_body(body);
  if (!json) return refuse(json.error());
  const auto tokens = tokens_of(std::move(*json), card);
  if (!tokens) return refuse(tokens.error());
  HttpResponse response;
  response.body = R"({"tokens":)" + list_of(*tokens) + R"(,"count":)" +
                  std::to_string(tokens->size()) + R"(,"max_model_len":)" +
                  std::to_string(card.context_tokens) + '}';
  return response;
}

HttpResponse detokenize(std::string_view body, const ModelCard& card) {
  const auto json = read_body(body);
  if (!json) return refuse(json.error());
  FieldReader fields(*json);
  std::vector<TokenId> ids;
  if (fields.find("tokens") == nullptr) fields.complain("tokens", "is missing");
  fields.token_ids("tokens", card.vocab_size, ids);
  size_t bytes = 0;
  for (const TokenId id : ids) bytes += card.tokenizer->token_bytes(id).size();
  if (bytes > kMaxDetokenizeBytes) fields.complain("tokens", "too many for one call");
  if (!fields.status()) return refuse(fields.status().error());
  HttpResponse response;
  response.body = R"({"prompt":)" + json_string(card.tokenizer->decode(ids)) + '}';
  return response;
}

HttpResponse answer_get(const Route& route, GatewayContext& context) {
  HttpResponse response;
  const actors::Stats stats = context.client.stats();
  switch (route.endpoint) {
    case Endpoint::models: response.body = models_json(context.card); break;
    case Endpoint::model:
      if (!context.card.answers_to(route.argument)) {
        return error_response(http_error(404, "this server does not serve the requested model"));
      }
      response.body = model_json(context.card, route.argument);
      break;
    case Endpoint::alive: response.body = status_json(true); break;
    case Endpoint::health:
      // Dead only when a stage is missing, not while the server drains.
      response.body = status_json(stats.ready || context.stopping);
      if (!stats.ready && !context.stopping) response.status = 503;
      break;
    case Endpoint::ready:
      response.body = status_json(stats.ready && !context.stopping);
      if (!stats.ready || context.stopping) response.status = 503;
      break;
    case Endpoint::version: response.body = R"({"version":")" CEDAR_VERSION R"("})"; break;
    case Endpoint::metrics:
      response.content_type = "text/plain; version=0.0.4; charset=utf-8";
      response.body = context.metrics.scrape(gauges_of(stats));
      break;
    case Endpoint::wrong_method:
      response =
          error_response(http_error(405, "method not allowed here; allowed: " + route.argument));
      response.headers.emplace_back("Allow", route.argument);
      break;
    default: return error_response(http_error(404, "no such path"));
  }
  return response;
}

}  // namespace cedar::gateway
