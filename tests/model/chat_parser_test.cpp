#include "model/chat_parser.h"

#include <functional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/golden_text.h"

namespace cedar::model {
namespace {

using nlohmann::ordered_json;

struct Outcome {
  ParsedMessage message;
  FinishReason reason = FinishReason::stop;
  int64_t discarded_bytes = 0;
  std::vector<OutputSegment> segments;
};

/// Checks what every client relies on while it adds segments to a message.
void collect(Outcome& out, const std::vector<OutputSegment>& segments, int32_t& open_call) {
  for (const OutputSegment& segment : segments) {
    EXPECT_TRUE(is_utf8(segment.text));
    switch (segment.kind) {
      case OutputKind::reasoning:
      case OutputKind::content:
        EXPECT_FALSE(segment.text.empty());
        EXPECT_EQ(segment.call_idx, -1);
        break;
      case OutputKind::call_begin:
        EXPECT_EQ(segment.call_idx, static_cast<int32_t>(out.message.calls.size()));
        open_call = segment.call_idx;
        break;
      case OutputKind::call_arguments: EXPECT_EQ(segment.call_idx, open_call); break;
      case OutputKind::call_end:
        EXPECT_EQ(segment.call_idx, open_call);
        open_call = -1;
        break;
    }
    out.segments.push_back(segment);
    append(out.message, {segment});
  }
}

Outcome parse(const std::vector<std::string_view>& pieces, const ChatParserOptions& options,
              OutputEnd end = OutputEnd::stop_token) {
  ChatParser parser(options);
  Outcome out;
  int32_t open_call = -1;
  for (const std::string_view piece : pieces) collect(out, parser.push(piece), open_call);
  const auto finish = parser.finish(end);
  collect(out, finish.segments, open_call);
  out.reason = finish.reason;
  out.discarded_bytes = parser.discarded_bytes();
  return out;
}

ordered_json to_json(const Outcome& outcome) {
  ordered_json calls = ordered_json::array();
  for (const ParsedCall& call : outcome.message.calls) {
    calls.push_back(ordered_json{{"name", call.name}, {"arguments", call.arguments}});
  }
  return {{"reasoning_content", outcome.message.reasoning},
          {"content", outcome.message.content},
          {"tool_calls", calls},
          {"finish_reason", std::string(to_string(outcome.reason))}};
}

/// Calls `check` with the text whole, cut in two at every byte, and byte by byte.
void for_all_cuts(const std::string& text,
                  const std::function<void(const std::vector<std::string_view>&)>& check) {
  const std::string_view all = text;
  for (size_t cut = 0; cut <= all.size(); ++cut) check({all.substr(0, cut), all.substr(cut)});
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < all.size(); ++i) bytes.push_back(all.substr(i, 1));
  check(bytes);
}

ChatParserOptions thinking(bool on, std::vector<std::string> stop = {}) {
  return {on, std::move(stop)};
}

TEST(ChatParser, EqualsTheReferenceForEveryCut) {
  const std::string eos = "<｜end▁of▁sentence｜>";
  int parsed = 0;
  for (const auto& line : read_json_lines(golden_path("chat/cases.jsonl"))) {
    if (line.at("kind") != "parse") continue;
    SCOPED_TRACE(line.at("id").get<std::string>() + ": " + line.at("rule").get<std::string>());
    ++parsed;
    auto text = line.at("input").at("completion").get<std::string>();
    // The end-of-sentence token reaches the parser as an event, not as text.
    if (text.size() >= eos.size() && text.ends_with(eos)) text.resize(text.size() - eos.size());
    const auto options = thinking(line.at("input").at("thinking").get<bool>());
    for_all_cuts(text, [&](const auto& pieces) {
      ASSERT_EQ(to_json(parse(pieces, options)), line.at("expected"));
    });
  }
  EXPECT_EQ(parsed, 14);
}

std::string call(const std::string& parameters) {
  return "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n" + parameters +
         "\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
}
std::string parameter(const std::string& name, const std::string& value, bool is_string) {
  return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + (is_string ? "true" : "false") +
         "\">" + value + "</｜DSML｜ parameter>";
}

// B50: the closing tag cut at every byte.
TEST(ChatParser, ClosingMarkupNeverShowsInAnArgument) {
  for_all_cuts("ok" + call(parameter("city", "Paris", true)), [](const auto& pieces) {
    const Outcome outcome = parse(pieces, thinking(false));
    ASSERT_EQ(outcome.message.calls.size(), 1u);
    ASSERT_EQ(outcome.message.calls[0].arguments, "{\"city\": \"Paris\"}");
    ASSERT_EQ(outcome.message.content, "ok");
  });
}

TEST(ChatParser, AlmostMarkupInAValueIsTheValue) {
  const std::string value = "<</</｜</｜D</｜DSML<｜DSML｜ parameter name=\"x\" \"}{";
  for_all_cuts(call(parameter("a", value, true)), [&](const auto& pieces) {
    const Outcome outcome = parse(pieces, thinking(false));
    ASSERT_EQ(outcome.message.calls.size(), 1u);
    ASSERT_EQ(ordered_json::parse(outcome.message.calls[0].arguments).at("a"), value);
  });
}

TEST(ChatParser, StringsAreEscapedAndOtherValuesPassedOn) {
  const std::string odd = "\"\\\n\t\x01\r 中😀";
  const Outcome outcome =
      parse({call(parameter("k\"\\", odd, true) + "\n" + parameter("n", "[1,\n 2] ", false))},
            thinking(false));
  ASSERT_EQ(outcome.message.calls.size(), 1u);
  // A quote ends the key; the rest of it is no type and is skipped.
  EXPECT_EQ(outcome.message.calls[0].arguments,
            "{\"k\": \"\\\"\\\\\\n\\t\\u0001\\r 中😀\", \"n\": [1,\n 2] }");
}

// B47: a character in four pieces comes out whole, a cut one as one mark at the end.
TEST(ChatParser, CharactersStayWhole) {
  for_all_cuts("因为</think>好😀", [](const auto& pieces) {
    const Outcome outcome = parse(pieces, thinking(true));
    ASSERT_EQ(outcome.message.reasoning, "因为");
    ASSERT_EQ(outcome.message.content, "好😀");
  });
  EXPECT_EQ(parse({"a\xF0\x9F", "\x98"}, thinking(false)).message.content, "a\xEF\xBF\xBD");
}

// B48 in a chat answer.
TEST(ChatParser, StopStringsCutTheAnswer) {
  for_all_cuts("beta gamma</think>alpha beta gamma delta", [](const auto& pieces) {
    const Outcome outcome = parse(pieces, thinking(true, {"beta gamma"}), OutputEnd::length);
    ASSERT_EQ(outcome.message.reasoning, "beta gamma");  // reasoning is not searched
    ASSERT_EQ(outcome.message.content, "alpha ");
    ASSERT_EQ(outcome.reason, FinishReason::stop);
  });
  for_all_cuts("alpha beta gamut", [](const auto& pieces) {
    ASSERT_EQ(parse(pieces, thinking(false, {"beta gamma"})).message.content, "alpha beta gamut");
  });
}

TEST(ChatParser, StopStringsDoNotReachIntoMarkup) {
  // Neither in the arguments, nor across the block, nor in the newlines that belong to it.
  for_all_cuts("x be" + call(parameter("a", "beta", true)), [](const auto& pieces) {
    const Outcome outcome = parse(pieces, thinking(false, {"beta", "\n\n", "<｜DSML"}));
    ASSERT_EQ(outcome.message.content, "x be");
    ASSERT_EQ(outcome.message.calls.size(), 1u);
    ASSERT_EQ(outcome.reason, FinishReason::tool_calls);
  });
}

TEST(ChatParser, AStopStringOfNewlinesWorks) {
  for_all_cuts("\n\nfirst\n\nsecond", [](const auto& pieces) {
    const Outcome outcome = parse(pieces, thinking(false, {"\n\n"}));
    ASSERT_EQ(outcome.message.content, "first");
    ASSERT_EQ(outcome.reason, FinishReason::stop);
  });
  // Also when generation ends right after it.
  const Outcome outcome = parse({"first\n\n"}, thinking(false, {"\n\n"}), OutputEnd::length);
  EXPECT_EQ(outcome.message.content, "first");
  EXPECT_EQ(outcome.reason, FinishReason::stop);
}

TEST(ChatParser, SaysWhenGenerationCanEnd) {
  ChatParser parser(thinking(false, {"STOP"}));
  parser.push("a ST");
  EXPECT_FALSE(parser.stopped());
  parser.push("OP");
  EXPECT_TRUE(parser.stopped());
  EXPECT_TRUE(parser.push("b" + call("")).empty());
  EXPECT_EQ(parser.call_count(), 0);
}

TEST(ChatParser, ATruncatedCallKeepsWhatCame) {
  const std::string whole = call(parameter("city", "Paris", true));
  const size_t closing = whole.find("</｜DSML｜ parameter>");
  for (size_t length = 0; length < closing + 12; ++length) {
    const Outcome outcome = parse({whole.substr(0, length)}, thinking(false), OutputEnd::length);
    EXPECT_EQ(outcome.reason, FinishReason::length);
    if (outcome.message.calls.empty()) continue;
    const std::string full = "{\"city\": \"Paris\"}";
    const std::string& arguments = outcome.message.calls[0].arguments;
    EXPECT_EQ(arguments, full.substr(0, arguments.size()));
  }
  EXPECT_EQ(parse({whole.substr(0, closing)}, thinking(false)).reason, FinishReason::tool_calls);
}

TEST(ChatParser, PlainEndsReleaseWhatWasHeld) {
  EXPECT_EQ(parse({"a <"}, thinking(false)).message.content, "a <");
  EXPECT_EQ(parse({"a\n\n"}, thinking(false)).message.content, "a\n\n");
  EXPECT_EQ(parse({"\n\n"}, thinking(false)).message.content, "");
  EXPECT_EQ(parse({"r\n</thin"}, thinking(true)).message.reasoning, "r\n</thin");
  EXPECT_EQ(parse({"r"}, thinking(true), OutputEnd::length).reason, FinishReason::length);
  EXPECT_EQ(parse({}, thinking(true)).reason, FinishReason::stop);
}

TEST(ChatParser, CountsWhatItDrops) {
  EXPECT_EQ(parse({"a</think>b</think>c"}, thinking(true)).discarded_bytes, 8);
  EXPECT_EQ(parse({"x" + call("") + "\n\nmore"}, thinking(false)).discarded_bytes, 6);
  EXPECT_EQ(parse({"x" + call(parameter("a", "1", false))}, thinking(false)).discarded_bytes, 0);
}

TEST(ChatParser, ManyNewlinesTakeLinearTime) {
  ChatParser parser(thinking(false));
  parser.push("a");
  for (int i = 0; i < 200000; ++i) EXPECT_TRUE(parser.push("\n").empty());
  const auto segments = parser.push("b");
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(segments[0].text, std::string(200000, '\n') + "b");
}

// Mutated outputs: whatever comes in, the result does not depend on the cuts, and the answer holds
// neither a stop string nor the beginning of a block.
TEST(ChatParser, MutatedOutputsAreIndependentOfTheCuts) {
  const std::vector<std::string> words = {"</think>",
                                          "<｜DSML｜",
                                          "</｜DSML｜",
                                          "<｜DSML｜ calls>",
                                          "</｜DSML｜ calls>",
                                          "</｜DSML｜tool_calls>",
                                          "invoke name=\"",
                                          "parameter name=\"",
                                          "\" string=\"true\">",
                                          "\" string=\"false\">",
                                          "\">",
                                          "\n",
                                          "\n\n",
                                          "x",
                                          "stop",
                                          "sto",
                                          "<",
                                          "\"",
                                          "\xF0\x9F",
                                          "\x98\x80",
                                          "｜",
                                          "\xFF",
                                          "日"};
  std::mt19937 random(23);
  for (int round = 0; round < 15000; ++round) {
    std::string text;
    for (size_t n = random() % 24; n > 0; --n) {
      std::string word = words[random() % words.size()];
      if (random() % 8 == 0 && !word.empty()) word.erase(random() % word.size(), 1);
      text += word;
    }
    const auto options = thinking(random() % 2 == 0, {"stop", "op\n"});
    const auto end = random() % 2 == 0 ? OutputEnd::stop_token : OutputEnd::length;
    const Outcome whole = parse({text}, options, end);
    std::vector<std::string_view> pieces;
    for (size_t i = 0; i < text.size();) {
      pieces.push_back(std::string_view(text).substr(i, 1 + random() % 5));
      i += pieces.back().size();
    }
    const Outcome cut = parse(pieces, options, end);
    ASSERT_EQ(to_json(cut), to_json(whole)) << text;
    ASSERT_EQ(cut.discarded_bytes, whole.discarded_bytes) << text;
    ASSERT_EQ(whole.message.content.find("stop"), std::string::npos) << text;
    // What stands on both sides of a tag that was swallowed may look like markup together.
    if (text.find("</think>") != std::string::npos) continue;
    ASSERT_EQ(whole.message.content.find("<｜DSML｜"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace cedar::model
