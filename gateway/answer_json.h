#pragma once
// Answers as the OpenAI dialect writes them (spec/api.md sections 3 and 4). Built as text: a chunk is made
// for every token of every stream.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/api_types.h"
#include "gateway/token_stream.h"
#include "model/chat_parser.h"

namespace cedar::gateway {

/// A JSON string with its quotes.
std::string json_string(std::string_view text);

/// 24 random letters and digits after `prefix`: "chatcmpl-", "call_", "resp_".
std::string random_id(std::string_view prefix);
uint64_t random_seed();

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
  int64_t disk_tokens = 0;           // of the cached ones, brought from a disk
  int64_t replayed_tokens = 0;       // cached ones that were computed again
  std::string_view resume = "none";  // how the encoder came by its windows, actors::ResumeKind
};
std::string usage_json(const Usage& usage);

/// What every chunk of one answer repeats.
struct AnswerHead {
  ApiKind kind = ApiKind::chat;
  std::string id;
  int64_t created = 0;
  std::string model;
  std::string fingerprint;
  uint64_t seed = 0;

  static AnswerHead make(const PreparedRequest& request, const ModelCard& card);
};

/// Log-probabilities of some tokens, in the form of the answer's kind; "null" for none.
std::string logprobs_json(ApiKind kind, const std::vector<TokenReport>& tokens,
                          const model::Tokenizer& tokenizer);
std::string token_ids_json(const std::vector<TokenReport>& tokens);

/// Names tool calls towards the client; one per choice.
class CallIds {
 public:
  const std::string& of(int32_t call_idx);

 private:
  std::vector<std::string> ids_;
};

/// The object that a chat delta carries for a segment; empty for segments without one (the end of a call).
std::string delta_json(const model::OutputSegment& segment, CallIds& calls);

/// One choice inside a chunk.
struct ChunkChoice {
  int64_t index = 0;
  std::string delta = "{}";  // chat; as delta_json makes it
  std::string text;          // completion
  std::string logprobs = "null";
  std::string token_ids;           // a JSON list; empty: absent
  std::string_view finish_reason;  // empty: null
};
/// `usage`: a JSON object or "null"; empty: absent.
std::string chunk_json(const AnswerHead& head, const ChunkChoice& choice, std::string_view usage);
/// The chunk with usage and without choices.
std::string usage_chunk_json(const AnswerHead& head, const Usage& usage);

/// One finished choice of an answer that is not streamed.
struct FinishedChoice {
  model::ParsedMessage message;  // a completion has content only
  bool has_reasoning = false;    // thinking was on
  std::vector<TokenReport> tokens;
  std::string finish_reason;
};
std::string answer_json(const AnswerHead& head, const std::vector<FinishedChoice>& choices,
                        const Usage& usage, const ApiRequest& request,
                        const model::Tokenizer& tokenizer);

std::string models_json(const ModelCard& card);
std::string model_json(const ModelCard& card, std::string_view id);

}  // namespace cedar::gateway
