// Design: one automaton, one byte at a time. Each state has the markers that end it; a byte either
// completes a marker, extends the beginning of one (and is held back), or settles what was held.
// Nothing ever looks at how the bytes were cut into pieces.

#include "model/chat_parser.h"

#include <initializer_list>
#include <utility>

#include "model/chat_template.h"
#include "model/json_python.h"

namespace cedar::model {
namespace {

constexpr std::string_view kMarkupBegin = "<｜DSML｜";
constexpr std::string_view kMarkupEnd = "</｜DSML｜";
// The second spelling is the previous version's, which the model has seen as well.
constexpr std::string_view kCallsEnd = "</｜DSML｜ calls>";
constexpr std::string_view kOldCallsEnd = "</｜DSML｜tool_calls>";

PatternMatcher markers(std::initializer_list<std::string_view> list) {
  return PatternMatcher(std::vector<std::string>(list.begin(), list.end()));
}

}  // namespace

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::tool_calls: return "tool_calls";
  }
  return "";
}

// In the order of State; the index of a marker in its list is what on_marker gets.
ChatParser::ChatParser(const ChatParserOptions& options)
    : matchers_{{
          markers({chat_token::kThinkEnd, kMarkupBegin}),        // reasoning
          markers({chat_token::kThinkEnd, kMarkupBegin}),        // answer
          markers({"invoke name=\"", kCallsEnd, kOldCallsEnd}),  // calls
          markers({"\""}),                                       // name
          markers({"parameter name=\"", kMarkupEnd}),            // arguments
          markers({"\""}),                                       // key
          markers({"true\">", "false\">"}),                      // type
          markers({kMarkupEnd}),                                 // string_value
          markers({kMarkupEnd}),                                 // raw_value
          markers({}),                                           // finished
      }},
      stop_(options.stop),
      state_(options.starts_in_reasoning ? State::reasoning : State::answer) {}

std::vector<OutputSegment> ChatParser::push(std::string_view bytes) {
  for (const char byte : utf8_.push(bytes)) consume(byte);
  return std::exchange(out_, {});
}

ChatParser::Finish ChatParser::finish(OutputEnd end) {
  // What was held back is text after all. In a parameter's value it stays out, with a character
  // that is cut after it: the value is cut off anyway, and half a closing tag must not show in it.
  const bool in_text = state_ == State::reasoning || state_ == State::answer;
  if (in_text || held_.empty()) {
    for (const char byte : utf8_.flush()) consume(byte);
  }
  if (in_text) {
    release_text(held_.size());
    if (newlines_ > 0) emit_text({});
  }
  emit(OutputKind::content, stop_.flush());

  FinishReason reason = FinishReason::stop;
  if (stopped()) reason = FinishReason::stop;
  else if (end == OutputEnd::length) reason = FinishReason::length;
  else if (calls_ > 0) reason = FinishReason::tool_calls;
  return {std::exchange(out_, {}), reason};
}

void ChatParser::consume(char byte) {
  if (stopped()) return;
  if (state_ == State::reasoning || state_ == State::answer) consume_text(byte);
  else consume_markup(byte);
}

void ChatParser::consume_text(char byte) {
  if (byte == '\n') {
    // No marker holds a newline, so it settles what came before it.
    release_text(held_.size());
    matcher().reset();
    ++newlines_;
    return;
  }
  held_ += byte;
  const int marker = matcher().step(byte);
  if (marker < 0) {
    release_text(held_.size() - matcher().depth());
    return;
  }
  const size_t marker_bytes = held_.size();
  newlines_ = 0;
  held_.clear();
  on_marker(marker, marker_bytes);
}

void ChatParser::consume_markup(char byte) {
  held_ += byte;
  const int marker = matcher().step(byte);
  if (marker >= 0) {
    const size_t marker_bytes = held_.size();
    held_.clear();
    on_marker(marker, marker_bytes);
    return;
  }
  const size_t settled = held_.size() - matcher().depth();
  for (size_t i = 0; i < settled; ++i) take(held_[i]);
  held_.erase(0, settled);
}

/// The first `count` held bytes are text, and so are the newlines before them.
void ChatParser::release_text(size_t count) {
  if (count == 0) return;
  emit_text(std::string_view(held_).substr(0, count));
  held_.erase(0, count);
}

/// A byte that belongs to no marker, in the states of the markup.
void ChatParser::take(char byte) {
  switch (state_) {
    case State::name: name_ += byte; break;
    case State::key:
    case State::string_value: {
      std::string escaped;
      append_json_escaped(escaped, std::string_view(&byte, 1));
      emit_call(OutputKind::call_arguments, escaped);
      break;
    }
    case State::raw_value: emit_call(OutputKind::call_arguments, std::string_view(&byte, 1)); break;
    case State::finished: ++discarded_bytes_; break;
    case State::reasoning:  // consume_text handles these two
    case State::answer:
    case State::calls:  // the rest of a tag
    case State::arguments:
    case State::type: break;
  }
}

void ChatParser::enter(State state) {
  state_ = state;
  matcher().reset();
}

void ChatParser::on_marker(int marker, size_t marker_bytes) {
  switch (state_) {
    case State::reasoning:
      at_start_ = true;
      enter(marker == 0 ? State::answer : State::calls);
      break;
    case State::answer:
      if (marker == 0) {
        discarded_bytes_ += static_cast<int64_t>(marker_bytes);
        enter(State::answer);
        break;
      }
      // No stop string reaches across the markup.
      emit(OutputKind::content, stop_.flush());
      enter(State::calls);
      break;
    case State::calls:
      name_.clear();
      enter(marker == 0 ? State::name : State::finished);
      break;
    case State::name:
      ++calls_;
      has_parameter_ = false;
      emit_call(OutputKind::call_begin, name_);
      enter(State::arguments);
      break;
    case State::arguments:
      if (marker == 0) {
        emit_call(OutputKind::call_arguments, has_parameter_ ? ", \"" : "{\"");
        has_parameter_ = true;
        enter(State::key);
      } else {
        emit_call(OutputKind::call_arguments, has_parameter_ ? "}" : "{}");
        emit_call(OutputKind::call_end, {});
        enter(State::calls);
      }
      break;
    case State::key:
      emit_call(OutputKind::call_arguments, "\": ");
      enter(State::type);
      break;
    case State::type:
      if (marker == 0) emit_call(OutputKind::call_arguments, "\"");
      enter(marker == 0 ? State::string_value : State::raw_value);
      break;
    case State::string_value:
      emit_call(OutputKind::call_arguments, "\"");
      enter(State::arguments);
      break;
    case State::raw_value: enter(State::arguments); break;
    case State::finished: break;
  }
}

/// Text of the reasoning or the answer, after the newlines that turned out to be text as well.
void ChatParser::emit_text(std::string_view text) {
  std::string whole(at_start_ ? 0 : static_cast<size_t>(newlines_), '\n');
  whole += text;
  newlines_ = 0;
  if (!text.empty()) at_start_ = false;
  if (state_ == State::reasoning) emit(OutputKind::reasoning, whole);
  else emit(OutputKind::content, stop_.push(whole));
}

void ChatParser::emit(OutputKind kind, std::string_view text) {
  if (text.empty()) return;
  if (out_.empty() || out_.back().kind != kind) out_.push_back({kind, {}, -1});
  out_.back().text += text;
}

void ChatParser::emit_call(OutputKind kind, std::string_view text) {
  const int32_t call = calls_ - 1;
  const bool joins = kind == OutputKind::call_arguments && !out_.empty() &&
                     out_.back().kind == kind && out_.back().call_idx == call;
  if (!joins) out_.push_back({kind, {}, call});
  out_.back().text += text;
}

void append(ParsedMessage& message, const std::vector<OutputSegment>& segments) {
  for (const OutputSegment& segment : segments) {
    switch (segment.kind) {
      case OutputKind::reasoning: message.reasoning += segment.text; break;
      case OutputKind::content: message.content += segment.text; break;
      case OutputKind::call_begin: message.calls.push_back({segment.text, {}}); break;
      case OutputKind::call_arguments:
        message.calls[static_cast<size_t>(segment.call_idx)].arguments += segment.text;
        break;
      case OutputKind::call_end: break;
    }
  }
}

}  // namespace cedar::model
