#include "model/chat_turns.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <unordered_map>

#include "model/chat_fields.h"
#include "model/chat_template.h"
#include "model/chat_tools.h"
#include "model/json_python.h"

namespace cedar::model {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::string_view, 6> kTasks = {"action", "query", "authority",
                                                    "domain", "title", "read_url"};

std::string entry(const std::string& path, size_t i) {
  return path + "[" + std::to_string(i) + "]";
}

/// A list field; null where it is absent or empty.
Result<const ordered_json*> list_field(const ordered_json& message, const std::string& path,
                                       const char* key) {
  const ordered_json* list = find_field(message, key);
  if (list == nullptr) return static_cast<const ordered_json*>(nullptr);
  if (!list->is_array()) return field_error(path + "." + key, "expected a list", *list);
  return list->empty() ? nullptr : list;
}

class TurnReader {
 public:
  explicit TurnReader(const ChatOptions& options) : options_(options) {}

  Status read(const ordered_json& messages) {
    if (!messages.is_array() || messages.empty()) {
      return field_error("messages", "expected a list of at least one message", messages);
    }
    for (size_t i = 0; i < messages.size(); ++i) {
      const std::string path = entry("messages", i);
      CEDAR_CHECK_OK(check_field_object(messages[i], path));
      CEDAR_CHECK_OK(read_message(messages[i], path));
    }
    return {};
  }

  ChatTurns take() { return std::move(out_); }

 private:
  Status read_message(const ordered_json& message, const std::string& path) {
    CEDAR_TRY(const std::string role, string_field(message, path, "role"));
    CEDAR_CHECK_OK(check_fields_of_role(message, path, role));
    if (role == "user") return read_user(message, path);
    if (role == "tool") return read_tool_result(message, path);
    if (role == "assistant") return read_assistant(message, path);
    if (role == "system" || role == "developer") return read_system(message, path);
    if (role == "latest_reminder") {
      ChatTurn turn{TurnRole::reminder};
      CEDAR_TRY(turn.task, read_task(message, path));
      CEDAR_TRY(turn.parts, read_content(message, path));
      out_.turns.push_back(std::move(turn));
      return {};
    }
    return field_error(path + ".role",
                       "expected system, developer, user, assistant, tool or latest_reminder",
                       ordered_json(role));
  }

  /// A field that would be read on another role only is refused rather than lost.
  static Status check_fields_of_role(const ordered_json& message, const std::string& path,
                                     const std::string& role) {
    const bool is_system = role == "system" || role == "developer";
    CEDAR_TRY(const ordered_json* tools, list_field(message, path, "tools"));
    if (tools != nullptr && !is_system) {
      return field_error(path + ".tools", "only system messages declare tools");
    }
    if (find_field(message, "response_format") != nullptr && !is_system) {
      return field_error(path + ".response_format", "only system messages set it");
    }
    CEDAR_TRY(const ordered_json* calls, list_field(message, path, "tool_calls"));
    if (calls != nullptr && role != "assistant") {
      return field_error(path + ".tool_calls", "only assistant messages hold calls");
    }
    if (find_field(message, "task") != nullptr && (role == "assistant" || role == "tool")) {
      return field_error(path + ".task", "is not for messages of this role", ordered_json(role));
    }
    return {};
  }

  static Result<std::string> read_task(const ordered_json& message, const std::string& path) {
    CEDAR_TRY(std::string task, string_field(message, path, "task"));
    if (find_field(message, "task") != nullptr &&
        std::find(kTasks.begin(), kTasks.end(), task) == kTasks.end()) {
      return field_error(path + ".task", "unknown task", ordered_json(task));
    }
    return task;
  }

  Status read_user(const ordered_json& message, const std::string& path) {
    CEDAR_TRY(std::string task, read_task(message, path));
    CEDAR_TRY(std::vector<ContentPart> parts, read_content(message, path));
    // The encoder keeps the task of a turn's first message only.
    if (!last_turn_is_user() || !out_.turns.back().task.empty()) {
      ChatTurn turn{TurnRole::user};
      turn.task = std::move(task);
      out_.turns.push_back(std::move(turn));
    }
    append_parts(std::move(parts));
    return {};
  }

  Status read_tool_result(const ordered_json& message, const std::string& path) {
    ContentPart part{ContentPart::Kind::tool_result};
    CEDAR_TRY(part.call_id, string_field(message, path, "tool_call_id"));
    CEDAR_TRY(part.result, read_content(message, path));
    if (!last_turn_is_user()) out_.turns.push_back(ChatTurn{TurnRole::user});
    out_.turns.back().parts.push_back(std::move(part));
    return {};
  }

  Status read_assistant(const ordered_json& message, const std::string& path) {
    ChatTurn turn{TurnRole::assistant};
    CEDAR_TRY(turn.parts, read_content(message, path));
    CEDAR_TRY(const std::string reasoning, string_field(message, path, "reasoning_content"));
    CEDAR_TRY(turn.reasoning, clean(reasoning, path + ".reasoning_content"));
    CEDAR_TRY(const ordered_json* calls, list_field(message, path, "tool_calls"));
    for (size_t i = 0; calls != nullptr && i < calls->size(); ++i) {
      CEDAR_CHECK_OK(read_call((*calls)[i], entry(path + ".tool_calls", i), turn));
    }
    if (options_.require_reasoning && options_.thinking && calls != nullptr &&
        find_field(message, "reasoning_content") == nullptr) {
      return field_error(
          path + ".reasoning_content",
          "the reasoning of a message with tool calls must be passed back in thinking mode");
    }
    if (const ordered_json* flag = find_field(message, "wo_eos"); flag != nullptr) {
      if (!flag->is_boolean())
        return field_error(path + ".wo_eos", "expected true or false", *flag);
      turn.without_eos = flag->get<bool>();
    }
    out_.turns.push_back(std::move(turn));
    return {};
  }

  Status read_call(const ordered_json& value, const std::string& path, ChatTurn& turn) {
    CEDAR_TRY(ToolCall call, read_tool_call(value, path));
    CEDAR_TRY(call.name, clean(call.name, path + ".function.name"));
    for (CallParameter& parameter : call.parameters) {
      const std::string arguments = path + ".function.arguments";
      CEDAR_TRY(parameter.name, clean(parameter.name, arguments));
      CEDAR_TRY(parameter.value, clean(parameter.value, arguments));
    }
    turn.calls.push_back(std::move(call));
    return {};
  }

  Status read_system(const ordered_json& message, const std::string& path) {
    ChatTurn turn{TurnRole::system};
    CEDAR_TRY(turn.task, read_task(message, path));
    CEDAR_TRY(turn.parts, read_content(message, path));
    CEDAR_TRY(const ordered_json* tools, list_field(message, path, "tools"));
    for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
      const std::string tool_path = entry(path + ".tools", i);
      CEDAR_TRY(const std::string schema, read_tool_schema((*tools)[i], tool_path));
      CEDAR_TRY(std::string cleaned, clean(schema, tool_path));
      turn.schemas.push_back(std::move(cleaned));
    }
    if (const ordered_json* format = find_field(message, "response_format"); format != nullptr) {
      const std::string format_path = path + ".response_format";
      auto text = write_python_json(*format);
      if (!text) return field_error(format_path, text.error().context);
      CEDAR_TRY(turn.response_format, clean(*text, format_path));
    }
    out_.turns.push_back(std::move(turn));
    return {};
  }

  /// Null or absent is an empty text; a list is kept part by part.
  Result<std::vector<ContentPart>> read_content(const ordered_json& message,
                                                const std::string& path) {
    const std::string content_path = path + ".content";
    const ordered_json* content = find_field(message, "content");
    std::vector<ContentPart> parts;
    if (content == nullptr) {
      parts.push_back({});
    } else if (content->is_string()) {
      CEDAR_TRY(std::string text, clean(content->get_ref<const std::string&>(), content_path));
      parts.push_back({ContentPart::Kind::text, std::move(text), {}, {}});
    } else if (content->is_array()) {
      for (size_t i = 0; i < content->size(); ++i) {
        CEDAR_TRY(ContentPart part, read_block((*content)[i], entry(content_path, i)));
        parts.push_back(std::move(part));
      }
    } else {
      return field_error(content_path, "expected a text or a list of blocks", *content);
    }
    return parts;
  }

  Result<ContentPart> read_block(const ordered_json& block, const std::string& path) {
    CEDAR_CHECK_OK(check_field_object(block, path));
    CEDAR_TRY(const std::string type, string_field(block, path, "type"));
    if (type.empty()) return field_error(path + ".type", "is missing");
    ContentPart part;
    if (type == "text") {
      CEDAR_TRY(const std::string text, string_field(block, path, "text"));
      CEDAR_TRY(part.text, clean(text, path + ".text"));
    } else if (type == "image_url" || type == "image") {
      part.kind = ContentPart::Kind::image;
      CEDAR_TRY(part.text, read_image_source(block, path, type));
    } else {
      CEDAR_TRY(part.text, clean("[Unsupported " + type + "]", path + ".type"));
    }
    return part;
  }

  static Result<std::string> read_image_source(const ordered_json& block, const std::string& path,
                                               const std::string& type) {
    std::string source;
    if (type == "image") {
      for (const char* key : {"source", "url", "data"}) {
        if (!source.empty()) break;
        CEDAR_TRY(source, string_field(block, path, key));
      }
    } else {
      const ordered_json* value = find_field(block, "image_url");
      if (value != nullptr && value->is_object()) {
        CEDAR_TRY(source, string_field(*value, path + ".image_url", "url"));
      } else {
        CEDAR_TRY(source, string_field(block, path, "image_url"));
      }
    }
    if (source.empty()) return field_error(path + "." + type, "an image needs a source");
    return source;
  }

  /// A caller's text without image placeholders of its own.
  Result<std::string> clean(std::string text, const std::string& path) {
    for (size_t at = text.find(chat_token::kImage); at != std::string::npos;
         at = text.find(chat_token::kImage, at)) {
      if (options_.placeholder == PlaceholderPolicy::refuse) {
        return field_error(
            path, "text must not spell the image placeholder " + std::string(chat_token::kImage));
      }
      text.replace(at, chat_token::kImage.size(), kImageSpelledInText);
      ++out_.replaced_placeholders;
    }
    return text;
  }

  bool last_turn_is_user() const {
    return !out_.turns.empty() && out_.turns.back().role == TurnRole::user;
  }
  void append_parts(std::vector<ContentPart> parts) {
    auto& all = out_.turns.back().parts;
    std::move(parts.begin(), parts.end(), std::back_inserter(all));
  }

  const ChatOptions& options_;
  ChatTurns out_;
};

using CallRanks = std::unordered_map<std::string, size_t>;

/// Results take each other's places; texts between them stay where they are.
void order_results(std::vector<ContentPart>& parts, const CallRanks& ranks) {
  std::vector<ContentPart> results;
  const auto is_result = [](const ContentPart& p) {
    return p.kind == ContentPart::Kind::tool_result;
  };
  std::copy_if(parts.begin(), parts.end(), std::back_inserter(results), is_result);
  const auto rank = [&ranks](const ContentPart& part) {
    const auto it = ranks.find(part.call_id);
    return it == ranks.end() ? size_t{0} : it->second;  // unknown calls come first
  };
  std::stable_sort(
      results.begin(), results.end(),
      [&rank](const ContentPart& a, const ContentPart& b) { return rank(a) < rank(b); });
  auto next = results.begin();
  for (ContentPart& part : parts) {
    if (is_result(part)) part = std::move(*next++);
  }
}

void order_all_results(std::vector<ChatTurn>& turns) {
  CallRanks ranks;  // of the last assistant turn with calls
  for (ChatTurn& turn : turns) {
    if (turn.role == TurnRole::user) order_results(turn.parts, ranks);
    if (turn.calls.empty()) continue;
    ranks.clear();
    for (size_t i = 0; i < turn.calls.size(); ++i) {
      if (!turn.calls[i].id.empty()) ranks[turn.calls[i].id] = i;
    }
  }
}

}  // namespace

Result<ChatTurns> read_chat_turns(const ordered_json& messages, const ChatOptions& options) {
  TurnReader reader(options);
  CEDAR_CHECK_OK(reader.read(messages));
  ChatTurns turns = reader.take();
  order_all_results(turns.turns);
  return turns;
}

}  // namespace cedar::model
