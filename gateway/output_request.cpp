#include "gateway/output_request.h"

#include <algorithm>
#include <utility>

#include "model/chat_tools.h"
#include "model/json_python.h"

namespace cedar::gateway {
namespace {

using engine::structured::AnswerKind;
using engine::structured::CallChoice;
using engine::structured::OutputRules;
using engine::structured::ToolRules;

constexpr const char* kNoParameters = R"({"type":"object","properties":{}})";

struct ToolChoice {
  enum class Kind : uint8_t { automatic, none, required, named };
  Kind kind = Kind::automatic;
  std::string name;  // of named
};

Error in_field(const std::string& field, const Error& error) {
  return make_error(error.code, field + ": " + error.context);
}

Result<ToolChoice> read_tool_choice(const Json& choice) {
  using Kind = ToolChoice::Kind;
  if (choice == "auto") return ToolChoice{Kind::automatic, {}};
  if (choice == "none") return ToolChoice{Kind::none, {}};
  if (choice == "required") return ToolChoice{Kind::required, {}};
  if (choice.is_string()) {
    return make_error(Errc::invalid_argument,
                      "tool_choice: must be none, auto, required or a function");
  }
  if (!choice.is_object()) {
    return make_error(Errc::invalid_argument,
                      "tool_choice: must be a string or an object, got " + describe(choice));
  }
  FieldReader fields(choice, "tool_choice.");
  std::string type = "function", name;
  fields.text("type", 64, type);
  if (type != "function") fields.complain("type", "must be function");
  const Json* function = fields.object("function");
  if (function == nullptr) {
    fields.complain("function", "is missing");
  } else {
    FieldReader inner(*function, "tool_choice.function.");
    inner.text("name", 256, name);
    if (name.empty()) inner.complain("name", "is missing");
    fields.absorb(inner.status());
  }
  CEDAR_CHECK_OK(fields.status());
  return ToolChoice{Kind::named, std::move(name)};
}

struct ReadTool {
  ToolRules rules;
  bool strict = false;
};

/// The tool as the prompt will show it.
Result<ReadTool> read_tool(const Json& tool, const std::string& path) {
  const auto shown = model::read_tool_schema(tool, path);
  if (!shown) return without_content(shown.error());
  CEDAR_TRY(const Json function, model::read_python_json(*shown));
  ReadTool result;
  FieldReader fields(function, path + ".function.");
  result.rules.name = function["name"].get<std::string>();
  fields.boolean("strict", result.strict);
  result.rules.parameters = kNoParameters;
  if (const Json* parameters = fields.find("parameters")) {
    auto text = model::write_python_json(*parameters);
    if (!text) return in_field(path + ".function.parameters", text.error());
    result.rules.parameters = std::move(*text);
    if (parameters->is_object() && parameters->empty()) result.rules.parameters = kNoParameters;
  }
  CEDAR_CHECK_OK(fields.status());
  return result;
}

/// A strict tool's parameters are enforced. Those of others are where all of the schema can be and a call is
/// forced; otherwise only the call's shape is.
Status settle_parameters(ReadTool& tool, bool forced, const std::string& path) {
  if (tool.strict) {
    const Status status = engine::structured::check_tool(tool.rules);
    if (!status) return in_field(path + ".function.parameters", status.error());
    return {};
  }
  if (forced && engine::structured::check_tool(tool.rules)) return {};
  tool.rules.parameters.clear();
  const Status status = engine::structured::check_tool(tool.rules);
  if (!status) return in_field(path + ".function.name", status.error());
  return {};
}

bool is_named(const std::string& qualified, const std::string& name) {
  return qualified == name || model::split_tool_name(qualified).name == name;
}

/// The rules for calls. `constrained` says whether they restrict anything.
Status read_calls(const Json& tools, const ToolChoice& choice, OutputRules& rules,
                  bool& constrained) {
  using Kind = ToolChoice::Kind;
  const bool forced = choice.kind == Kind::required || choice.kind == Kind::named;
  if (tools.empty()) {
    if (!forced) return {};
    return make_error(Errc::invalid_argument, "tool_choice: a call is required and tools is empty");
  }
  if (choice.kind == Kind::none) {
    constrained = true;
    return {};
  }
  bool strict = false;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    CEDAR_TRY(ReadTool tool, read_tool(tools[i], path));
    if (choice.kind == Kind::named && !is_named(tool.rules.name, choice.name)) continue;
    CEDAR_CHECK_OK(settle_parameters(tool, forced, path));
    strict = strict || tool.strict;
    rules.tools.push_back(std::move(tool.rules));
  }
  if (rules.tools.empty()) {
    return make_error(Errc::invalid_argument, "tool_choice.function.name: is none of the tools");
  }
  rules.calls = forced ? CallChoice::required : CallChoice::allowed;
  constrained = constrained || forced || strict || !rules.parallel_calls;
  return {};
}

/// A tool choice without tools that could be checked, or a response format, may leave no rules at all.
void read_tools(FieldReader& fields, ApiRequest& request, OutputRules& rules, bool& constrained) {
  if (const Json* tools = fields.find("tools")) {
    if (!tools->is_array())
      return fields.complain("tools", "must be a list, got " + describe(*tools));
    if (tools->size() > kMaxTools) {
      return fields.complain("tools", "must have at most " + std::to_string(kMaxTools) +
                                          " entries, got " + std::to_string(tools->size()));
    }
    request.tools = *tools;
  }
  fields.boolean("parallel_tool_calls", rules.parallel_calls);
  ToolChoice choice;
  if (const Json* given = fields.find("tool_choice")) {
    auto read = read_tool_choice(*given);
    if (!read) return fields.absorb(read.error());
    choice = std::move(*read);
    request.tool_choice = *given;
  }
  fields.absorb(read_calls(request.tools, choice, rules, constrained));
}

void read_json_schema(FieldReader& format, OutputRules& rules) {
  const Json* holder = format.object("json_schema");
  if (holder == nullptr) return format.complain("json_schema", "is missing");
  FieldReader fields(*holder, "response_format.json_schema.");
  fields.boolean("strict", rules.closed_objects);
  const Json* schema = fields.object("schema");
  if (schema == nullptr) {
    fields.complain("schema", "is missing");
  } else {
    const auto text = model::write_python_json(*schema);
    if (text) {
      rules.schema = *text;
      const Status status = engine::structured::check_schema(*text, rules.closed_objects);
      if (!status) {
        fields.absorb(in_field("response_format.json_schema.schema", status.error()));
      }
    } else {
      fields.absorb(in_field("response_format.json_schema.schema", text.error()));
    }
  }
  format.absorb(fields.status());
}

void read_response_format(FieldReader& fields, ApiRequest& request, OutputRules& rules) {
  const Json* format = fields.object("response_format");
  if (format == nullptr) return;
  std::string type;
  FieldReader nested(*format, "response_format.");
  nested.text("type", 64, type);
  if (type == "json_object") {
    rules.answer = AnswerKind::json_object;
  } else if (type == "json_schema") {
    rules.answer = AnswerKind::json_schema;
    read_json_schema(nested, rules);
  } else if (type != "text") {
    nested.complain("type", "must be text, json_object or json_schema");
  }
  fields.absorb(nested.status());
  if (type != "text") request.response_format = *format;
}

}  // namespace

void read_output_fields(FieldReader& fields, ApiRequest& request) {
  OutputRules rules;
  bool constrained = false;
  read_tools(fields, request, rules, constrained);
  read_response_format(fields, request, rules);
  if (constrained || rules.answer != AnswerKind::text) request.output = std::move(rules);
}

}  // namespace cedar::gateway
