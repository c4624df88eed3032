#pragma once
// Messages of the OpenAI shape, checked and turned into the turns that a prompt is written from.
// Everything that can be refused is refused here, so that writing the prompt cannot fail.

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/result.h"
#include "model/chat_format.h"

namespace cedar::model {

enum class TurnRole : uint8_t { system, user, assistant, reminder };

struct ContentPart {
  enum class Kind : uint8_t { text, image, tool_result };
  Kind kind = Kind::text;
  std::string text;                 // text: as it is written; image: the source
  std::string call_id;              // tool_result
  std::vector<ContentPart> result;  // tool_result: its texts and images
};

struct CallParameter {
  std::string name;
  std::string value;  // a string's text, or JSON
  bool is_string = false;
};

struct ToolCall {
  std::string id;
  std::string name;  // qualified
  std::vector<CallParameter> parameters;
};

struct ChatTurn {
  TurnRole role = TurnRole::user;
  std::vector<ContentPart> parts;
  std::string reasoning;                       // assistant
  std::vector<ToolCall> calls;                 // assistant
  bool without_eos = false;                    // assistant: the answer goes on
  std::vector<std::string> schemas;            // system: JSON of each declared tool
  std::optional<std::string> response_format;  // system: JSON
  std::string task;                            // quick task, empty for none
};

struct ChatTurns {
  std::vector<ChatTurn> turns;
  int64_t replaced_placeholders = 0;
};

/// One turn per message, except that consecutive user and tool messages share one, in which tool
/// results stand in the order of the calls they answer.
/// Errors: invalid_argument naming the field.
Result<ChatTurns> read_chat_turns(const nlohmann::ordered_json& messages,
                                  const ChatOptions& options);

}  // namespace cedar::model
