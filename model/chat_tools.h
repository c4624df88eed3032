#pragma once
// Tools and tool calls of a request, as a prompt shows them (spec/chat.md 2.7 and 2.8).

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/result.h"
#include "model/chat_turns.h"

namespace cedar::model {

/// The JSON of one tool: its `function` object with the namespace worked into name and description.
/// `path` is the tool's place in the request. Errors: invalid_argument naming the field.
Result<std::string> read_tool_schema(const nlohmann::ordered_json& tool, const std::string& path);

/// One entry of an assistant message's tool_calls. Arguments may be an object or JSON text, encoded
/// once or twice; anything else becomes one parameter named "arguments".
/// Errors: invalid_argument naming the field.
Result<ToolCall> read_tool_call(const nlohmann::ordered_json& call, const std::string& path);

}  // namespace cedar::model
