#pragma once
// The fixed texts of the prompt layout (spec/chat.md 1.5 and 2).

#include <string_view>

namespace cedar::model {

namespace chat_token {
constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
constexpr std::string_view kSystem = "<｜System｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kReminder = "<｜latest_reminder｜>";
constexpr std::string_view kThinkBegin = "<think>";
constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kDsml = "｜DSML｜";
constexpr std::string_view kImage = "<｜deepseek_image｜>";
}  // namespace chat_token

/// What the image placeholder becomes when a user's text spells it.
constexpr std::string_view kImageSpelledInText = "<|deepseek_image|>";

/// Joins the parts of a turn.
constexpr std::string_view kParagraph = "\n\n";

constexpr std::string_view kEffortPrefix = "Reasoning Effort: ";
constexpr std::string_view kEffortSuffix =
    " (range 1-100, the higher the value, the more thorough the reasoning)\n\n";

/// Around the tool schemas, which stand one a line.
constexpr std::string_view kToolsPrefix = R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
constexpr std::string_view kToolsSuffix =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";

constexpr std::string_view kResponseFormat =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

}  // namespace cedar::model
