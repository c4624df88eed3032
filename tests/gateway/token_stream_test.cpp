#include "gateway/token_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/gateway/cards.h"

namespace cedar::gateway {
namespace {

using model::OutputEnd;
using model::OutputKind;

/// Ids of single-byte tokens: any text can be fed one byte a step.
std::vector<TokenId> bytes_as_tokens(const std::string& text) {
  static const std::map<char, TokenId> ids = [] {
    std::map<char, TokenId> result;
    const auto& tokenizer = *demo_card().tokenizer;
    for (TokenId id = 0; id < tokenizer.size(); ++id) {
      const std::string_view bytes = tokenizer.token_bytes(id);
      if (bytes.size() == 1 && !tokenizer.is_added(id)) result.emplace(bytes[0], id);
    }
    return result;
  }();
  std::vector<TokenId> tokens;
  for (char byte : text) tokens.push_back(ids.at(byte));
  return tokens;
}

struct Streamed {
  std::vector<std::string> pieces;  // of content
  std::string content, reasoning;
  std::vector<std::pair<std::string, std::string>> calls;
  std::string reason;
  size_t consumed = 0;  // tokens until a stop string, or all
};

void absorb(Streamed& out, const TextPiece& piece) {
  for (const auto& segment : piece.segments) {
    switch (segment.kind) {
      case OutputKind::reasoning: out.reasoning += segment.text; break;
      case OutputKind::content:
        out.content += segment.text;
        out.pieces.push_back(segment.text);
        break;
      case OutputKind::call_begin: out.calls.emplace_back(segment.text, ""); break;
      case OutputKind::call_arguments: out.calls.back().second += segment.text; break;
      case OutputKind::call_end: break;
    }
  }
}

PreparedRequest request_of(ApiKind kind, std::vector<std::string> stop = {},
                           bool reasoning = false) {
  PreparedRequest request;
  request.api.kind = kind;
  request.api.stop = std::move(stop);
  request.starts_in_reasoning = reasoning;
  return request;
}

Streamed run(TokenStream stream, const std::vector<TokenId>& tokens, OutputEnd end) {
  Streamed out;
  for (TokenId id : tokens) {
    engine::TokenEvent event;
    event.token.token = id;
    ++out.consumed;
    absorb(out, stream.push(event));
    if (stream.stopped()) break;
  }
  absorb(out, stream.finish(end));
  out.reason = stream.finish_reason();
  return out;
}

Streamed run(ApiKind kind, const std::vector<TokenId>& tokens, std::vector<std::string> stop = {},
             OutputEnd end = OutputEnd::stop_token, bool reasoning = false) {
  return run(TokenStream(request_of(kind, std::move(stop), reasoning), demo_card()), tokens, end);
}

class BothKinds : public testing::TestWithParam<ApiKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, BothKinds, testing::Values(ApiKind::chat, ApiKind::completion));

// B47: bytes of a character that come one a step are held until it is whole.
TEST_P(BothKinds, CharactersAreNeverSplit) {
  const std::string text =
      "a\xF0\x9F\x98\x80"
      "b\xE4\xB8\xAD"
      "c\xC3\xA9";
  const Streamed out = run(GetParam(), bytes_as_tokens(text));
  EXPECT_EQ(out.content, text);
  for (const std::string& piece : out.pieces) EXPECT_TRUE(model::is_utf8(piece)) << piece;
  EXPECT_EQ(out.reason, "stop");
}

TEST_P(BothKinds, ATruncatedCharacterBecomesOneReplacementAtTheEnd) {
  const Streamed out = run(GetParam(), bytes_as_tokens("ok\xF0\x9F\x98"), {}, OutputEnd::length);
  EXPECT_EQ(out.content, "ok\xEF\xBF\xBD");
  EXPECT_EQ(out.reason, "length");
}

// B48: nothing of a stop string is sent, wherever the pieces are cut; a near miss is released in full.
TEST_P(BothKinds, StopStringsNeverReachTheClient) {
  const std::string text = "alpha beta gamma delta";
  const Streamed out = run(GetParam(), bytes_as_tokens(text), {"beta gamma"});
  EXPECT_EQ(out.content, "alpha ");
  EXPECT_EQ(out.reason, "stop");
  EXPECT_EQ(out.consumed, std::string("alpha beta gamma").size());
  const auto& tokenizer = *demo_card().tokenizer;
  EXPECT_EQ(run(GetParam(), tokenizer.encode(text), {"beta gamma"}).content, "alpha ");
  const Streamed miss = run(GetParam(), bytes_as_tokens("alpha beta gamut"), {"beta gamma"});
  EXPECT_EQ(miss.content, "alpha beta gamut");
  const Streamed cut =
      run(GetParam(), bytes_as_tokens("alpha beta ga"), {"beta gamma"}, OutputEnd::length);
  EXPECT_EQ(cut.content, "alpha beta ga");
  EXPECT_EQ(cut.reason, "length");
}

TEST(TokenStream, TheEndTokenIsCountedButNoText) {
  const ModelCard card = demo_card();
  TokenStream stream(request_of(ApiKind::chat), card);
  engine::TokenEvent event;
  event.token.token = bytes_as_tokens("x")[0];
  stream.push(event);
  event.token.token = card.eos;
  EXPECT_TRUE(stream.push(event).segments.empty());
  EXPECT_EQ(stream.completion_tokens(), 2);
  EXPECT_EQ(stream.reasoning_tokens(), 0);
}

TEST(TokenStream, ReasoningIsApartAndUntouchedByStopStrings) {
  const auto& tokenizer = *demo_card().tokenizer;
  const auto tokens = tokenizer.encode("stop here first</think>Then stop here");
  TokenStream stream(request_of(ApiKind::chat, {"stop here"}, true), demo_card());
  const Streamed out = run(stream, tokens, OutputEnd::stop_token);
  EXPECT_EQ(out.reasoning, "stop here first");
  EXPECT_EQ(out.content, "Then ");
  EXPECT_EQ(out.reason, "stop");
}

TEST(TokenStream, ReasoningTokensAreCountedUpToTheTag) {
  const auto& tokenizer = *demo_card().tokenizer;
  const auto reasoning = tokenizer.encode("some thoughts</think>");
  TokenStream stream(request_of(ApiKind::chat, {}, true), demo_card());
  for (TokenId id : tokenizer.encode("some thoughts</think>and an answer")) {
    engine::TokenEvent event;
    event.token.token = id;
    stream.push(event);
  }
  EXPECT_EQ(stream.reasoning_tokens(), static_cast<int64_t>(reasoning.size()));
}

constexpr const char* kCall =
    "Let me look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n"
    "<｜DSML｜ parameter name=\"city\" string=\"true\">Paris</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"days\" string=\"false\">3</｜DSML｜ parameter>\n"
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>";

// B50: argument text is exact however the markup arrives.
TEST(TokenStream, ToolCallsAreTheSameForTokensAndForSingleBytes) {
  for (const auto& tokens : {demo_card().tokenizer->encode(kCall), bytes_as_tokens(kCall)}) {
    const Streamed out = run(ApiKind::chat, tokens);
    EXPECT_EQ(out.content, "Let me look.");
    ASSERT_EQ(out.calls.size(), 1U);
    EXPECT_EQ(out.calls[0].first, "get_weather");
    EXPECT_EQ(out.calls[0].second, R"({"city": "Paris", "days": 3})");
    EXPECT_EQ(out.reason, "tool_calls");
  }
}

TEST(TokenStream, ACompletionParsesNothing) {
  EXPECT_EQ(run(ApiKind::completion, demo_card().tokenizer->encode(kCall)).content, kCall);
}

TEST(TokenStream, TokensAreReportedOnlyWhenAskedFor) {
  PreparedRequest request = request_of(ApiKind::chat);
  engine::TokenEvent event;
  event.token.token = bytes_as_tokens("x")[0];
  EXPECT_TRUE(TokenStream(request, demo_card()).push(event).tokens.empty());
  request.api.return_token_ids = true;
  TokenStream stream(request, demo_card());
  stream.push(event);
  const TextPiece second = stream.push(event);
  ASSERT_EQ(second.tokens.size(), 1U);
  EXPECT_EQ(second.tokens[0].text_offset, 1);
}

}  // namespace
}  // namespace cedar::gateway
