#pragma once
// Answers over HTTP: as a stream of server-sent events, or whole (spec/api.md sections 3 and 4).

#include <memory>
#include <string>
#include <vector>

#include "gateway/answer_json.h"
#include "gateway/generation.h"
#include "gateway/http_writer.h"

namespace cedar::gateway {

/// data: `json`
std::string sse_event(std::string_view json);

/// Sends chunks as OpenAI clients parse them: the role first, deltas, a finish reason per choice, usage when
/// asked for, [DONE]. The head goes out once the request is accepted, so that a refusal still has its status.
class SseResponder final : public GenerationObserver {
 public:
  SseResponder(std::shared_ptr<HttpWriter> writer, const PreparedRequest& request,
               const ModelCard& card);

  void on_queued(int64_t position) override;
  void on_prefill(int64_t computed, int64_t total) override;
  void on_prompt_read(const Usage& usage) override;
  void on_piece(int64_t choice, const TextPiece& piece) override;
  void on_choice_end(int64_t choice, std::string_view finish_reason) override;
  void on_end(EndStatus status, const Usage& usage, const std::optional<ApiError>& error) override;
  void on_batch_end() override {}

 private:
  struct Choice {
    CallIds calls;
    std::vector<TokenReport> tokens;  // not sent yet
    bool begun = false;
  };
  void begin();
  void send(const ChunkChoice& chunk);
  void send_segment(int64_t choice, const model::OutputSegment& segment);
  void attach_tokens(Choice& choice, ChunkChoice& chunk);
  std::string running_usage() const;

  std::shared_ptr<HttpWriter> writer_;
  AnswerHead head_;
  std::shared_ptr<const model::Tokenizer> tokenizer_;
  std::string echo_text_;
  bool include_usage_;
  bool continuous_usage_;
  bool token_ids_;
  bool begun_ = false;
  std::vector<Choice> choices_;
  Usage usage_;  // as far as pieces told
};

class JsonResponder final : public GenerationObserver {
 public:
  JsonResponder(std::shared_ptr<HttpWriter> writer, const PreparedRequest& request,
                const ModelCard& card);

  void on_queued(int64_t) override {}
  void on_prefill(int64_t, int64_t) override {}
  void on_prompt_read(const Usage&) override {}
  void on_piece(int64_t choice, const TextPiece& piece) override;
  void on_choice_end(int64_t choice, std::string_view finish_reason) override;
  void on_end(EndStatus status, const Usage& usage, const std::optional<ApiError>& error) override;
  void on_batch_end() override {}

 private:
  std::shared_ptr<HttpWriter> writer_;
  AnswerHead head_;
  ApiRequest api_;  // its delivery options
  std::shared_ptr<const model::Tokenizer> tokenizer_;
  std::vector<FinishedChoice> choices_;
};

/// An error as an HTTP answer.
HttpResponse error_response(const ApiError& error);

}  // namespace cedar::gateway
