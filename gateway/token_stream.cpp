#include "gateway/token_stream.h"

#include <algorithm>
#include <utility>

namespace cedar::gateway {
namespace {

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

}  // namespace

TokenStream::TokenStream(const PreparedRequest& request, const ModelCard& card)
    : tokenizer_(card.tokenizer),
      stops_(request.api.stop),
      end_of_reasoning_(card.tokenizer->added_token_id("</think>")),
      markup_(card.tokenizer->added_token_id("｜DSML｜")),
      keep_tokens_(request.api.sampling.logprobs >= 0 || request.api.return_token_ids),
      in_reasoning_(request.starts_in_reasoning) {
  if (request.api.kind == ApiKind::chat) {
    chat_.emplace(model::ChatParserOptions{request.starts_in_reasoning, request.api.stop});
  }
}

TextPiece TokenStream::push(const engine::TokenEvent& event) {
  TextPiece piece;
  if (stopped_) return piece;
  piece.token_count = 1;
  const TokenId id = event.token.token;
  if (keep_tokens_) piece.tokens.push_back({event.token, characters_, in_reasoning_});
  count(id);
  if (tokenizer_->is_special(id)) return piece;
  const std::string_view bytes = tokenizer_->token_bytes(id);
  characters_ += std::count_if(bytes.begin(), bytes.end(), begins_character);
  if (chat_) {
    piece.segments = chat_->push(bytes);
    stopped_ = chat_->stopped();
  } else {
    push_plain(stops_.push(utf8_.push(bytes)), piece);
    stopped_ = stops_.stopped();
  }
  return piece;
}

void TokenStream::count(TokenId id) {
  ++completion_tokens_;
  if (!in_reasoning_) return;
  ++reasoning_tokens_;
  if (id == end_of_reasoning_ || id == markup_) in_reasoning_ = false;
}

void TokenStream::push_plain(std::string_view text, TextPiece& piece) {
  if (!text.empty()) {
    piece.segments.push_back({model::OutputKind::content, std::string(text), -1});
  }
}

TextPiece TokenStream::finish(model::OutputEnd end) {
  TextPiece piece;
  if (chat_) {
    model::ChatParser::Finish last = chat_->finish(end);
    piece.segments = std::move(last.segments);
    reason_ = last.reason;
  } else {
    std::string text = stops_.push(utf8_.flush());
    if (!stops_.stopped()) text += stops_.flush();
    push_plain(text, piece);
    reason_ = end == model::OutputEnd::length && !stopped_ ? model::FinishReason::length
                                                           : model::FinishReason::stop;
  }
  return piece;
}

}  // namespace cedar::gateway
