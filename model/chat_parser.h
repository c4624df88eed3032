#pragma once
// The model's output to reasoning, answer and tool calls while it streams (spec/chat.md section 3).

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/pattern_matcher.h"
#include "model/utf8.h"

namespace cedar::model {

enum class OutputKind : uint8_t {
  reasoning,       // a piece of reasoning_content
  content,         // a piece of the answer
  call_begin,      // a tool call starts; text = the function's name, whole
  call_arguments,  // a piece of the call's arguments, JSON text
  call_end,        // the call is complete; text is empty
};

struct OutputSegment {
  OutputKind kind = OutputKind::content;
  std::string text;
  int32_t call_idx = -1;  // 0-based, of the three call kinds
};

/// Why no more output comes, as the engine sees it.
enum class OutputEnd : uint8_t { stop_token, length };

enum class FinishReason : uint8_t { stop, length, tool_calls };
/// The API's spelling.
std::string_view to_string(FinishReason reason);

struct ChatParserOptions {
  bool starts_in_reasoning = false;  // ChatPrompt::starts_in_reasoning
  std::vector<std::string> stop;     // cut the answer; reasoning and tool markup are not searched
};

/// Bytes in, cut anywhere, segments out. What the segments of one kind and call join to depends on
/// the bytes alone. Text is held back only while it may turn out to be markup, a stop string or
/// part of a character.
///
/// A parameter's value is passed on as it comes: strings are escaped, other values are the model's
/// own JSON, unchecked. The end-of-sentence token is no text; it arrives as
/// `finish(OutputEnd::stop_token)`.
class ChatParser {
 public:
  explicit ChatParser(const ChatParserOptions& options);

  std::vector<OutputSegment> push(std::string_view bytes);

  struct Finish {
    std::vector<OutputSegment> segments;  // what was still held back
    FinishReason reason = FinishReason::stop;
  };
  /// The end of the output. Call once. A call that is cut off keeps its arguments as far as they
  /// came.
  Finish finish(OutputEnd end);

  /// A stop string is complete: generation can end, further bytes are ignored.
  bool stopped() const { return stop_.stopped(); }
  int32_t call_count() const { return calls_; }
  /// Bytes of stray end-of-reasoning tags and of text after the calls, which no segment holds.
  int64_t discarded_bytes() const { return discarded_bytes_; }

 private:
  enum class State : uint8_t {
    reasoning,
    answer,
    calls,      // between invokes
    name,       // of a function
    arguments,  // between parameters
    key,        // a parameter's name
    type,       // between its name and its value
    string_value,
    raw_value,
    finished,  // after the block
  };
  static constexpr size_t kStateCount = 10;

  void consume(char byte);
  void consume_text(char byte);
  void consume_markup(char byte);
  void release_text(size_t count);
  void take(char byte);
  void enter(State state);
  void on_marker(int marker, size_t marker_bytes);
  void emit(OutputKind kind, std::string_view text);
  void emit_text(std::string_view text);
  void emit_call(OutputKind kind, std::string_view text);
  PatternMatcher& matcher() { return matchers_[static_cast<size_t>(state_)]; }

  std::array<PatternMatcher, kStateCount> matchers_;  // what ends each state
  StopStrings stop_;
  Utf8Stream utf8_;
  State state_;
  std::string held_;      // bytes that may be the beginning of a marker
  int64_t newlines_ = 0;  // directly before held_; they belong to a marker that follows
  bool at_start_ = true;  // of reasoning or answer, whose leading newlines are dropped
  std::string name_;      // of the function being read
  bool has_parameter_ = false;
  int32_t calls_ = 0;
  int64_t discarded_bytes_ = 0;
  std::vector<OutputSegment> out_;
};

/// A whole message, for answers that are not streamed.
struct ParsedCall {
  std::string name;
  std::string arguments;
};
struct ParsedMessage {
  std::string reasoning, content;
  std::vector<ParsedCall> calls;
};
void append(ParsedMessage& message, const std::vector<OutputSegment>& segments);

}  // namespace cedar::model
