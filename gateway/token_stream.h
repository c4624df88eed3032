#pragma once
// Token events of one choice to text: reasoning, answer and tool calls of a chat, or the plain text of a
// completion. Whole characters only; what may still become a stop string or markup is held back.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/decode_engine.h"
#include "gateway/model_card.h"
#include "gateway/prepare.h"
#include "model/chat_parser.h"

namespace cedar::gateway {

/// A token with its log-probability and those of its rivals.
struct TokenReport {
  engine::SampledToken token;
  int64_t text_offset = 0;  // characters of this choice before the token
  bool in_reasoning = false;
};

/// What one token, or the end, made certain.
struct TextPiece {
  std::vector<model::OutputSegment> segments;  // a completion has content only
  std::vector<TokenReport> tokens;             // when log-probabilities or token ids were asked for
  int64_t token_count = 0;                     // tokens that led to this
};

class TokenStream {
 public:
  TokenStream(const PreparedRequest& request, const ModelCard& card);

  TextPiece push(const engine::TokenEvent& event);
  /// After the last token. Call once.
  TextPiece finish(model::OutputEnd end);
  /// The API's finish_reason. REQUIRES: finish() was called.
  std::string_view finish_reason() const { return model::to_string(reason_); }
  /// A stop string is complete: further tokens are ignored and generation can end.
  bool stopped() const { return stopped_; }

  int64_t completion_tokens() const { return completion_tokens_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void push_plain(std::string_view text, TextPiece& piece);
  void count(TokenId id);

  std::shared_ptr<const model::Tokenizer> tokenizer_;
  std::optional<model::ChatParser> chat_;
  model::Utf8Stream utf8_;    // of a completion
  model::StopStrings stops_;  // of a completion
  TokenId end_of_reasoning_;  // -1: the vocabulary has none
  TokenId markup_;            // begins tool calls; -1: none
  bool keep_tokens_;
  bool in_reasoning_;
  bool stopped_ = false;
  int64_t characters_ = 0;
  int64_t completion_tokens_ = 0;
  int64_t reasoning_tokens_ = 0;
  model::FinishReason reason_ = model::FinishReason::stop;
};

}  // namespace cedar::gateway
