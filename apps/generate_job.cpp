#include "apps/generate_job.h"

#include <utility>

namespace cedar::apps {
namespace {

constexpr Json::error_handler_t kReplace = Json::error_handler_t::replace;

}  // namespace

Result<gateway::PreparedRequest> prepare_job(Json body, const Json& defaults,
                                             const gateway::ModelCard& card) {
  if (!body.is_object()) {
    return make_error(Errc::invalid_argument, "the line must be a JSON object");
  }
  for (const auto& [key, value] : defaults.items()) {
    if (!body.contains(key)) body[key] = value;
  }
  body.erase("model");  // one model is loaded, whatever it is called
  const auto given = [&body](const char* name) {
    return body.contains(name) && !body.at(name).is_null();
  };
  const bool chat = given("messages");
  if (chat == given("prompt")) {
    return make_error(Errc::invalid_argument,
                      chat ? "prompt: messages and prompt are both given, one is wanted"
                           : "messages: neither messages nor prompt is given");
  }
  auto read = chat ? gateway::read_chat_request(std::move(body), card)
                   : gateway::read_completion_request(body, card);
  if (!read) return read.error();
  if (read->choices > 1) return make_error(Errc::unsupported, "n: must be 1 here");
  return gateway::prepare(std::move(*read), card, gateway::random_seed());
}

GenerateJob::GenerateJob(Json id, uint64_t line, gateway::PreparedRequest request,
                         const gateway::ModelCard& card)
    : id_(std::move(id)),
      line_(line),
      request_(std::move(request)),
      stream_(request_, card),
      card_(card) {}

std::string GenerateJob::on_token(const engine::TokenEvent& event) {
  if (done_) return {};
  if (event.finish == engine::FinishReason::failed) {
    fail(event.error ? event.error->message() : std::string("failed"));
    return {};
  }
  ids_.push_back(event.token.token);
  std::string text = absorb(stream_.push(event));
  if (event.finish != engine::FinishReason::none || stream_.stopped()) {
    const bool length = event.finish == engine::FinishReason::length && !stream_.stopped();
    text +=
        absorb(stream_.finish(length ? model::OutputEnd::length : model::OutputEnd::stop_token));
    done_ = true;
  }
  return text;
}

std::string GenerateJob::absorb(const gateway::TextPiece& piece) {
  std::string text;
  for (const model::OutputSegment& segment : piece.segments) {
    if (segment.kind == model::OutputKind::content) text += segment.text;
  }
  model::append(message_, piece.segments);
  reports_.insert(reports_.end(), piece.tokens.begin(), piece.tokens.end());
  return text;
}

std::string GenerateJob::result_line() const {
  if (!error_.empty()) return error_line(id_, line_, error_);
  const gateway::ApiRequest& api = request_.api;
  std::string line = R"({"id":)" + id_.dump(-1, ' ', false, kReplace) + R"(,"text":)" +
                     gateway::json_string(request_.echo_text + message_.content) + R"(,"ids":[)";
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (i > 0) line += ',';
    line += std::to_string(ids_[i]);
  }
  gateway::Usage usage;
  usage.prompt_tokens = prompt_tokens();
  usage.completion_tokens = stream_.completion_tokens();
  usage.reasoning_tokens = stream_.reasoning_tokens();
  line += R"(],"usage":)" + gateway::usage_json(usage);
  line += R"(,"finish_reason":)" + gateway::json_string(stream_.finish_reason());
  if (request_.starts_in_reasoning) {
    line += R"(,"reasoning_content":)" + gateway::json_string(message_.reasoning);
  }
  if (!message_.calls.empty()) {
    line += R"(,"tool_calls":[)";
    for (const model::ParsedCall& call : message_.calls) {
      if (line.back() != '[') line += ',';
      line += R"({"name":)" + gateway::json_string(call.name) + R"(,"arguments":)" +
              gateway::json_string(call.arguments) + '}';
    }
    line += ']';
  }
  if (api.sampling.logprobs >= 0) {
    line += R"(,"logprobs":)" + gateway::logprobs_json(api.kind, reports_, *card_.tokenizer);
  }
  return line + '}';
}

std::string error_line(const Json& id, uint64_t line, const std::string& error) {
  return R"({"id":)" + id.dump(-1, ' ', false, kReplace) +
         (line > 0 ? R"(,"line":)" + std::to_string(line) : std::string()) + R"(,"error":)" +
         gateway::json_string(error) + '}';
}

}  // namespace cedar::apps
