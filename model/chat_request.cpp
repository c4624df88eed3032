// The request-level side of model/chat_format.h: names of efforts, and where tools and formats go.

#include "model/chat_fields.h"
#include "model/chat_format.h"

namespace cedar::model {

using nlohmann::ordered_json;

namespace {

constexpr const char* kEffortField = "reasoning_effort";

/// What of a response_format the prompt shows; null for plain text.
Result<ordered_json> shown_format(const ordered_json& format) {
  if (format.is_null()) return ordered_json();
  CEDAR_CHECK_OK(check_field_object(format, "response_format"));
  CEDAR_TRY(const std::string type, string_field(format, "response_format", "type"));
  if (type == "text") return ordered_json();
  if (type == "json_object") return ordered_json{{"type", "json_object"}};
  if (type != "json_schema") {
    return field_error("response_format.type", "expected text, json_object or json_schema",
                       ordered_json(type));
  }
  const ordered_json* holder = find_field(format, "json_schema");
  if (holder == nullptr) return field_error("response_format.json_schema", "is missing");
  CEDAR_CHECK_OK(check_field_object(*holder, "response_format.json_schema"));
  const ordered_json* schema = find_field(*holder, "schema");
  if (schema == nullptr) return field_error("response_format.json_schema.schema", "is missing");
  return *schema;
}

bool is_system(const ordered_json& message) {
  const ordered_json* role = message.is_object() ? find_field(message, "role") : nullptr;
  return role != nullptr && (*role == "system" || *role == "developer");
}

Status place(ordered_json& message, const char* key, const ordered_json& value) {
  if (value.is_null()) return {};
  if (const ordered_json* own = find_field(message, key); own != nullptr && !own->empty()) {
    return field_error(std::string("messages[0].") + key, "is set on the request as well");
  }
  message[key] = value;
  return {};
}

}  // namespace

Result<int> parse_effort(const ordered_json& value) {
  if (value.is_string()) {
    const auto& name = value.get_ref<const std::string&>();
    if (name == "low") return kEffortLow;
    if (name == "high") return kEffortHigh;
    if (name == "max") return kEffortMax;
  } else if (value.is_number_integer() && value >= 1 && value <= 100) {
    return value.get<int>();
  }
  return field_error(kEffortField, "expected low, high, max or an integer from 1 to 100", value);
}

Result<ThinkingChoice> parse_api_effort(std::string_view name) {
  if (name == "none") return ThinkingChoice{false, kEffortHigh};
  if (name == "minimal" || name == "low") return ThinkingChoice{true, kEffortLow};
  if (name == "medium" || name == "high" || name == "xhigh")
    return ThinkingChoice{true, kEffortHigh};
  if (name == "max" || name == "ultra") return ThinkingChoice{true, kEffortMax};
  return field_error(kEffortField, "expected none, minimal, low, medium, high, xhigh, max or ultra",
                     ordered_json(std::string(name)));
}

Status add_request_fields(ordered_json& messages, const ordered_json& tools,
                          const ordered_json& response_format, const ordered_json& tool_choice) {
  if (!messages.is_array()) return field_error("messages", "expected a list", messages);
  if (!tools.is_null() && !tools.is_array()) return field_error("tools", "expected a list", tools);
  CEDAR_TRY(const ordered_json format, shown_format(response_format));
  const bool declare = !tools.empty() && tool_choice != "none";
  if (!declare && format.is_null()) return {};
  if (messages.empty() || !is_system(messages.front())) {
    messages.insert(messages.begin(), ordered_json{{"role", "system"}, {"content", ""}});
  }
  CEDAR_CHECK_OK(place(messages.front(), "tools", declare ? tools : ordered_json()));
  return place(messages.front(), "response_format", format);
}

}  // namespace cedar::model
