#pragma once
// Messages to prompt text (spec/chat.md section 2). The release's Python encoder defines the
// layout; golden prompts pin it byte for byte.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/ids.h"
#include "core/result.h"

namespace cedar::model {

class Tokenizer;

constexpr int kEffortLow = 50;
constexpr int kEffortHigh = 75;
constexpr int kEffortMax = 100;

/// The encoder's own values: an integer from 1 to 100, "low", "high" or "max".
/// Errors: invalid_argument naming reasoning_effort and the value.
Result<int> parse_effort(const nlohmann::ordered_json& value);

struct ThinkingChoice {
  bool thinking = true;
  int effort = kEffortHigh;
};
/// The names of the public API: minimal and low; medium, high and xhigh; max and ultra; none
/// (thinking off).
/// Errors: invalid_argument naming reasoning_effort and the value.
Result<ThinkingChoice> parse_api_effort(std::string_view name);

/// What to do when a caller's text spells the image placeholder, which would shift every later
/// image.
enum class PlaceholderPolicy : uint8_t {
  replace,  // write it with ASCII bars and count it
  refuse,   // as the release's encoder does
};

struct ChatOptions {
  bool thinking = true;
  int effort = kEffortHigh;  // 1..100; unused when thinking is off
  /// Leaves out reasoning before the last user turn, unless tools are declared.
  bool drop_thinking = true;
  /// Refuses calls in the history that lack reasoning_content, as the hosted API does.
  bool require_reasoning = false;
  PlaceholderPolicy placeholder = PlaceholderPolicy::replace;
};

/// Bytes of the text that the layout itself wrote as one control token.
struct ControlSpan {
  size_t offset = 0, length = 0;
};

struct ChatPrompt {
  std::string text;                   // spells BOS itself: encode it as it is
  std::vector<ControlSpan> controls;  // in the text's order
  std::vector<std::string> images;    // URLs or data URIs, one per placeholder, in prompt order
  int64_t replaced_placeholders = 0;  // in callers' texts
  bool starts_in_reasoning = false;   // the answer begins inside a reasoning block
};

/// `messages` in the OpenAI shape; `tools` and `response_format` sit on system messages (see
/// add_request_fields). Roles: system (or developer), user, assistant, tool, latest_reminder.
/// Errors: invalid_argument naming the field, for instance "messages[2].content[0].type".
Result<ChatPrompt> render_chat(const nlohmann::ordered_json& messages, const ChatOptions& options);

/// Puts a request's `tools`, `response_format` and `tool_choice` (null where absent) where
/// render_chat reads them: on the first message if that is a system message, else on an empty one
/// put in front. With tool_choice "none" no tool is declared. Of a json_schema format only the
/// schema itself is written.
/// Errors: invalid_argument naming the field.
Status add_request_fields(nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                          const nlohmann::ordered_json& response_format,
                          const nlohmann::ordered_json& tool_choice);

/// Which control tokens an encoded prompt may hold.
enum class ControlTokens : uint8_t {
  anywhere,     // also those that a caller's text spells: what other servers do
  layout_only,  // those of the layout; in callers' texts they are ordinary text (spec/chat.md 2.11)
};

/// Both choices give the same ids when no caller's text spells an added token.
std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, const ChatPrompt& prompt,
                                   ControlTokens policy = ControlTokens::anywhere);

/// A tool's name in a prompt is "namespace::name", or the name alone.
struct ToolName {
  std::string_view name_space;  // empty when there is none
  std::string_view name;
};
ToolName split_tool_name(std::string_view qualified);

}  // namespace cedar::model
