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

/// Whether a balancer should send requests here: there are stages, and the queue moves.
bool is_ready(const actors::Stats& stats, const GatewayContext& context) {
  const auto limit = context.options.http.ready_stall;
  const bool stalled = limit.count() > 0 && stats.stalled >= limit;
  return stats.ready && !stalled && !context.stopping;
}

/// No text of a prompt or an answer, and no key.
std::string requests_json(const std::vector<actors::RequestInfo>& requests) {
  std::string text = R"({"requests":[)";
  const auto number = [&text](const char* name, int64_t value) {
    text.append(",\"").append(name).append("\":").append(std::to_string(value));
  };
  for (const actors::RequestInfo& one : requests) {
    if (text.back() != '[') text += ',';
    text += R"({"id":)" + std::to_string(one.id.value);
    text.append(R"(,"phase":")").append(one.phase).append("\"");
    number("age_ms", one.age.count());
    number("in_phase_ms", one.in_phase.count());
    number("prompt_tokens", one.prompt_tokens);
    number("read_tokens", one.read_tokens);
    number("written_tokens", one.written_tokens);
    text += R"(,"encoder":)" + (one.encoder.empty() ? "null" : json_string(one.encoder));
    text += R"(,"decoder":)" + (one.decoder.empty() ? "null" : json_string(one.decoder)) + '}';
  }
  return text + "]}";
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

void report_stats(const GatewayContext& context, monitoring::Metrics& metrics) {
  const actors::Stats stats = context.client.stats();
  using enum monitoring::MetricId;
  const auto set = [&](monitoring::MetricId id, int64_t value) {
    metrics.set(id, static_cast<double>(value));
  };
  set(monitoring::MetricId::ready, is_ready(stats, context) ? 1 : 0);
  metrics.set(queue_stalled, std::chrono::duration<double>(stats.stalled).count());
  set(queued_requests, stats.queued);
  set(running_requests, stats.running);
  set(live_actors, stats.live_actors);
  set(cluster_encoder_requests, stats.encoder_requests);
  set(cluster_encoder_queued_tokens, stats.encoder_queued_tokens);
  set(cluster_encoder_free_blocks, stats.encoder_free_blocks);
  set(cluster_decoder_sequences, stats.decoder_sequences);
  set(cluster_decoder_free_blocks, stats.decoder_free_blocks);
  set(cluster_decoder_blocks, stats.decoder_total_blocks);
  using Found = monitoring::EngramFound;
  const std::pair<Found, int64_t> rows[] = {{Found::cache, stats.engram.hits},
                                            {Found::ahead, stats.engram.ahead},
                                            {Found::late, stats.engram.late},
                                            {Found::missed, stats.engram.misses}};
  for (const auto& [found, count] : rows) {
    metrics.raise(cluster_engram_rows, found, static_cast<double>(count));
  }
  metrics.raise(cluster_engram_failed, static_cast<double>(stats.engram.failed_fetches));
  const auto total = static_cast<double>(stats.decoder_total_blocks);
  metrics.set(cluster_decoder_used,
              total > 0 ? 1 - static_cast<double>(stats.decoder_free_blocks) / total : 0);
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
      response.body = status_json(is_ready(stats, context));
      if (!is_ready(stats, context)) response.status = 503;
      break;
    case Endpoint::version: response.body = R"({"version":")" CEDAR_VERSION R"("})"; break;
    case Endpoint::metrics:
      response.content_type = "text/plain; version=0.0.4; charset=utf-8";
      response.body = context.metrics.scrape();
      break;
    case Endpoint::debug_requests:
      if (!context.options.http.debug_requests) {
        return error_response(http_error(404, "no such path"));
      }
      response.body = requests_json(context.client.requests());
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
