// The model's output: the message may not depend on how the bytes were cut, and its pieces are
// well-formed text.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "model/chat_parser.h"
#include "model/utf8.h"

namespace {

using namespace cedar::model;

struct Outcome {
  ParsedMessage message;
  FinishReason reason = FinishReason::stop;
};

void take(ParsedMessage& message, const std::vector<OutputSegment>& segments) {
  for (const OutputSegment& segment : segments) {
    CEDAR_ASSERT(is_utf8(segment.text), "a piece that is not well-formed");
    const bool begins = segment.kind == OutputKind::call_begin;
    const auto open_calls = static_cast<int32_t>(message.calls.size()) + (begins ? 1 : 0);
    const bool is_text =
        segment.kind == OutputKind::reasoning || segment.kind == OutputKind::content;
    CEDAR_ASSERT(segment.call_idx == (is_text ? -1 : open_calls - 1),
                 std::to_string(segment.call_idx));
    append(message, {segment});
  }
}

Outcome parse(std::string_view bytes, size_t piece, const ChatParserOptions& options,
              OutputEnd end) {
  ChatParser parser(options);
  Outcome outcome;
  for (size_t i = 0; i < bytes.size(); i += piece)
    take(outcome.message, parser.push(bytes.substr(i, piece)));
  const auto finish = parser.finish(end);
  take(outcome.message, finish.segments);
  outcome.reason = finish.reason;
  return outcome;
}

bool equal(const Outcome& a, const Outcome& b) {
  if (a.reason != b.reason || a.message.reasoning != b.message.reasoning ||
      a.message.content != b.message.content || a.message.calls.size() != b.message.calls.size()) {
    return false;
  }
  for (size_t i = 0; i < a.message.calls.size(); ++i) {
    if (a.message.calls[i].name != b.message.calls[i].name) return false;
    if (a.message.calls[i].arguments != b.message.calls[i].arguments) return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const bool in_reasoning : {false, true}) {
    for (const OutputEnd end : {OutputEnd::stop_token, OutputEnd::length}) {
      const ChatParserOptions options{in_reasoning, {"sunny", "\n\n\n", "oslo o"}};
      const Outcome whole = parse(bytes, bytes.size() + 1, options, end);
      for (const size_t piece : {1, 5}) {
        CEDAR_ASSERT(equal(parse(bytes, piece, options, end), whole),
                     std::to_string(piece) + " bytes a piece");
      }
    }
  }
  return 0;
}
