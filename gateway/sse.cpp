#include "gateway/sse.h"

#include <utility>

namespace cedar::gateway {
namespace {

ApiError stopped_error() {
  return http_error(503, "the server stopped before the answer was complete");
}

}  // namespace

std::string sse_event(std::string_view json) {
  std::string event = "data: ";
  event.append(json).append("\n\n");
  return event;
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = error_body(error);
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

SseResponder::SseResponder(std::shared_ptr<HttpWriter> writer, const PreparedRequest& request,
                           const ModelCard& card)
    : writer_(std::move(writer)),
      head_(AnswerHead::make(request, card)),
      tokenizer_(card.tokenizer),
      echo_text_(request.echo_text),
      include_usage_(request.api.include_usage),
      continuous_usage_(request.api.continuous_usage),
      token_ids_(request.api.return_token_ids),
      choices_(static_cast<size_t>(request.api.choices)) {
  usage_.prompt_tokens = static_cast<int64_t>(request.prompt.size());
}

void SseResponder::on_queued(int64_t) { begin(); }
void SseResponder::on_prefill(int64_t computed, int64_t) {
  // Until the first rows are computed an error still has a status of its own.
  if (computed > 0) begin();
}
void SseResponder::on_prompt_read(const Usage& usage) {
  usage_ = usage;
  begin();
}

void SseResponder::begin() {
  if (std::exchange(begun_, true)) return;
  writer_->begin_stream("text/event-stream", ": keep-alive\n\n");
  for (size_t i = 0; i < choices_.size(); ++i) {
    ChunkChoice chunk;
    chunk.index = static_cast<int64_t>(i);
    if (head_.kind == ApiKind::chat) {
      chunk.delta = R"({"role":"assistant","content":""})";
    } else {
      chunk.text = echo_text_;
      if (chunk.text.empty()) continue;
    }
    send(chunk);
  }
}

std::string SseResponder::running_usage() const {
  if (continuous_usage_) return usage_json(usage_);
  return include_usage_ ? "null" : "";
}

void SseResponder::send(const ChunkChoice& chunk) {
  writer_->write(sse_event(chunk_json(head_, chunk, running_usage())));
}

void SseResponder::attach_tokens(Choice& choice, ChunkChoice& chunk) {
  chunk.logprobs = logprobs_json(head_.kind, choice.tokens, *tokenizer_);
  if (token_ids_ && !choice.tokens.empty()) chunk.token_ids = token_ids_json(choice.tokens);
  choice.tokens.clear();
}

void SseResponder::on_piece(int64_t index, const TextPiece& piece) {
  begin();
  Choice& choice = choices_[static_cast<size_t>(index)];
  usage_.completion_tokens += piece.token_count;
  choice.tokens.insert(choice.tokens.end(), piece.tokens.begin(), piece.tokens.end());
  for (const model::OutputSegment& segment : piece.segments) send_segment(index, segment);
}

void SseResponder::send_segment(int64_t index, const model::OutputSegment& segment) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  ChunkChoice chunk;
  chunk.index = index;
  if (head_.kind == ApiKind::chat) {
    chunk.delta = delta_json(segment, choice.calls);
    if (chunk.delta.empty()) return;
  } else {
    chunk.text = segment.text;
  }
  attach_tokens(choice, chunk);
  send(chunk);
}

void SseResponder::on_choice_end(int64_t index, std::string_view finish_reason) {
  begin();
  ChunkChoice chunk;
  chunk.index = index;
  chunk.finish_reason = finish_reason;
  attach_tokens(choices_[static_cast<size_t>(index)],
                chunk);  // of tokens without text of their own
  send(chunk);
}

void SseResponder::on_end(EndStatus status, const Usage& usage,
                          const std::optional<ApiError>& error) {
  const bool broken = status == EndStatus::failed || status == EndStatus::cancelled;
  const ApiError problem = error.value_or(stopped_error());
  if (broken && !begun_) return writer_->respond(error_response(problem));
  begin();
  if (broken) {
    writer_->write(sse_event(error_body(problem)));
  } else if (include_usage_) {
    writer_->write(sse_event(usage_chunk_json(head_, usage)));
  }
  writer_->write(sse_event("[DONE]"));
  writer_->end_stream();
}

JsonResponder::JsonResponder(std::shared_ptr<HttpWriter> writer, const PreparedRequest& request,
                             const ModelCard& card)
    : writer_(std::move(writer)),
      head_(AnswerHead::make(request, card)),
      tokenizer_(card.tokenizer),
      choices_(static_cast<size_t>(request.api.choices)) {
  api_.sampling.logprobs = request.api.sampling.logprobs;
  api_.return_token_ids = request.api.return_token_ids;
  for (FinishedChoice& choice : choices_) {
    choice.has_reasoning = request.starts_in_reasoning;
    choice.message.content = request.echo_text;
  }
}

void JsonResponder::on_piece(int64_t index, const TextPiece& piece) {
  FinishedChoice& choice = choices_[static_cast<size_t>(index)];
  model::append(choice.message, piece.segments);
  choice.tokens.insert(choice.tokens.end(), piece.tokens.begin(), piece.tokens.end());
}

void JsonResponder::on_choice_end(int64_t index, std::string_view finish_reason) {
  choices_[static_cast<size_t>(index)].finish_reason = finish_reason;
}

void JsonResponder::on_end(EndStatus status, const Usage& usage,
                           const std::optional<ApiError>& error) {
  if (status == EndStatus::failed || status == EndStatus::cancelled) {
    return writer_->respond(error_response(error.value_or(stopped_error())));
  }
  HttpResponse response;
  response.body = answer_json(head_, choices_, usage, api_, *tokenizer_);
  writer_->respond(std::move(response));
}

}  // namespace cedar::gateway
