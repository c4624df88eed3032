#include "model/chat_tools.h"

#include "model/chat_fields.h"
#include "model/json_python.h"

namespace cedar::model {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kSeparator = "::";

struct Namespace {
  std::string name;  // empty: none
  std::string description;
};

/// A text, or {name, description}.
Result<Namespace> read_namespace(const ordered_json& holder, const std::string& holder_path) {
  const ordered_json* value = find_field(holder, "namespace");
  if (value == nullptr) return Namespace{};
  const std::string path = holder_path + ".namespace";
  Namespace out;
  if (value->is_string()) {
    out.name = value->get<std::string>();
  } else if (value->is_object()) {
    CEDAR_TRY(out.name, string_field(*value, path, "name"));
    CEDAR_TRY(out.description, string_field(*value, path, "description"));
  } else {
    return field_error(path, "expected a text or an object with a name", *value);
  }
  if (out.name.empty()) return field_error(path, "a namespace needs a name", *value);
  if (out.name.find(kSeparator) != std::string::npos) {
    return field_error(path, "namespaces cannot be nested", *value);
  }
  return out;
}

/// The namespace may stand beside the function or inside it.
Result<Namespace> common_namespace(const ordered_json& tool, const ordered_json& function,
                                   const std::string& path) {
  CEDAR_TRY(Namespace outer, read_namespace(tool, path));
  CEDAR_TRY(Namespace inner, read_namespace(function, path + ".function"));
  if (outer.name.empty()) return inner;
  if (!inner.name.empty() && inner.name != outer.name) {
    return field_error(path + ".function.namespace",
                       "conflicts with the tool's namespace " + outer.name,
                       ordered_json(inner.name));
  }
  return outer;
}

Result<std::string> qualified_name(const ordered_json& function, const Namespace& name_space,
                                   const std::string& path) {
  CEDAR_TRY(std::string name, string_field(function, path, "name"));
  if (name.empty()) return field_error(path + ".name", "a function needs a name");
  const ToolName parts = split_tool_name(name);
  if (parts.name.find(kSeparator) != std::string_view::npos) {
    return field_error(path + ".name", "namespaces cannot be nested", ordered_json(name));
  }
  const bool is_qualified = parts.name.size() != name.size();
  if (!is_qualified) {
    return name_space.name.empty() ? name : name_space.name + std::string(kSeparator) + name;
  }
  if (parts.name_space.empty() || parts.name.empty()) {
    return field_error(path + ".name", "expected namespace::name", ordered_json(name));
  }
  if (!name_space.name.empty() && name_space.name != parts.name_space) {
    return field_error(path + ".name", "conflicts with the namespace " + name_space.name,
                       ordered_json(name));
  }
  return name;
}

/// The function object of a tool or a call. `type` says "function" or, in a call, nothing.
Result<const ordered_json*> function_of(const ordered_json& holder, const std::string& path) {
  CEDAR_CHECK_OK(check_field_object(holder, path));
  const ordered_json* type = find_field(holder, "type");
  if (type != nullptr && *type != "function") {
    return field_error(path + ".type", "expected \"function\"", *type);
  }
  const ordered_json* function = find_field(holder, "function");
  if (function == nullptr) return field_error(path + ".function", "is missing");
  CEDAR_CHECK_OK(check_field_object(*function, path + ".function"));
  return function;
}

/// `arguments` as an object where they are one, also behind up to two layers of JSON text.
ordered_json decoded_arguments(const ordered_json& arguments) {
  ordered_json value = arguments;
  for (int layer = 0; layer < 2 && value.is_string(); ++layer) {
    auto decoded = read_python_json(value.get_ref<const std::string&>());
    if (!decoded) break;
    value = std::move(*decoded);
  }
  if (value.is_object()) return value;
  ordered_json wrapped = ordered_json::object();
  wrapped["arguments"] = arguments;
  return wrapped;
}

}  // namespace

ToolName split_tool_name(std::string_view qualified) {
  const size_t at = qualified.find(kSeparator);
  if (at == std::string_view::npos) return {{}, qualified};
  return {qualified.substr(0, at), qualified.substr(at + kSeparator.size())};
}

Result<std::string> read_tool_schema(const ordered_json& tool, const std::string& path) {
  CEDAR_TRY(const ordered_json* function, function_of(tool, path));
  CEDAR_TRY(const Namespace name_space, common_namespace(tool, *function, path));
  CEDAR_TRY(std::string name, qualified_name(*function, name_space, path + ".function"));

  ordered_json schema = *function;
  schema.erase("namespace");
  schema["name"] = std::move(name);
  if (!name_space.description.empty()) {
    const ordered_json* own = find_field(*function, "description");
    const bool has_text = own != nullptr && own->is_string();
    schema["description"] =
        name_space.description + "\n" + (has_text ? own->get<std::string>() : "");
  }
  auto text = write_python_json(schema);
  if (!text) return field_error(path + ".function", text.error().context);
  return text;
}

Result<ToolCall> read_tool_call(const ordered_json& call, const std::string& path) {
  CEDAR_TRY(const ordered_json* function, function_of(call, path));
  const std::string function_path = path + ".function";
  ToolCall out;
  CEDAR_TRY(out.id, string_field(call, path, "id"));
  if (out.id.empty()) {
    CEDAR_TRY(out.id, string_field(*function, function_path, "id"));
  }
  CEDAR_TRY(const Namespace name_space, common_namespace(call, *function, path));
  CEDAR_TRY(out.name, qualified_name(*function, name_space, function_path));

  const ordered_json* given = find_field(*function, "arguments");
  const ordered_json arguments =
      given == nullptr ? ordered_json::object() : decoded_arguments(*given);
  for (const auto& [key, value] : arguments.get_ref<const ordered_json::object_t&>()) {
    CallParameter parameter{key, {}, value.is_string()};
    if (parameter.is_string) {
      parameter.value = value.get<std::string>();
    } else {
      auto text = write_python_json(value);
      if (!text) return field_error(function_path + ".arguments", text.error().context);
      parameter.value = std::move(*text);
    }
    out.parameters.push_back(std::move(parameter));
  }
  return out;
}

}  // namespace cedar::model
