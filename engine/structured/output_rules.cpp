#include "engine/structured/output_rules.h"

#include <nlohmann/json.hpp>

#include "engine/structured/json_rules.h"
#include "engine/structured/output_compiler.h"
#include "model/json_python.h"

namespace cedar::engine::structured {
namespace {

// Nothing between a Json and its reader may throw: types are checked first.
Result<std::string> text_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) {
    return make_error(Errc::invalid_argument, std::string("output rules: ") + name + " is missing");
  }
  return found->get<std::string>();
}

Result<int64_t> integer_of(const Json& object, const char* name, int64_t max) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_integer() || *found < 0 || *found > max) {
    return make_error(Errc::invalid_argument, std::string("output rules: ") + name + " is missing");
  }
  return found->get<int64_t>();
}

}  // namespace

std::string to_text(const OutputRules& rules) {
  Json tools = Json::array();
  for (const ToolRules& tool : rules.tools) {
    tools.push_back(Json{{"name", tool.name}, {"parameters", tool.parameters}});
  }
  const Json object{{"reasoning", rules.starts_in_reasoning ? 1 : 0},
                    {"answer", static_cast<int>(rules.answer)},
                    {"schema", rules.schema},
                    {"closed", rules.closed_objects ? 1 : 0},
                    {"calls", static_cast<int>(rules.calls)},
                    {"parallel", rules.parallel_calls ? 1 : 0},
                    {"tools", std::move(tools)}};
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<OutputRules> output_rules_from_text(std::string_view text) {
  CEDAR_TRY(const Json object, model::read_python_json(text));
  if (!object.is_object()) {
    return make_error(Errc::invalid_argument, "output rules: must be an object");
  }
  OutputRules rules;
  CEDAR_TRY(const int64_t reasoning, integer_of(object, "reasoning", 1));
  CEDAR_TRY(const int64_t answer, integer_of(object, "answer", 2));
  CEDAR_TRY(rules.schema, text_of(object, "schema"));
  CEDAR_TRY(const int64_t closed, integer_of(object, "closed", 1));
  CEDAR_TRY(const int64_t calls, integer_of(object, "calls", 2));
  CEDAR_TRY(const int64_t parallel, integer_of(object, "parallel", 1));
  rules.starts_in_reasoning = reasoning != 0;
  rules.answer = static_cast<AnswerKind>(answer);
  rules.closed_objects = closed != 0;
  rules.calls = static_cast<CallChoice>(calls);
  rules.parallel_calls = parallel != 0;
  const auto tools = object.find("tools");
  if (tools == object.end() || !tools->is_array()) {
    return make_error(Errc::invalid_argument, "output rules: tools is missing");
  }
  for (const Json& tool : *tools) {
    if (!tool.is_object()) {
      return make_error(Errc::invalid_argument, "output rules: a tool must be an object");
    }
    ToolRules& entry = rules.tools.emplace_back();
    CEDAR_TRY(entry.name, text_of(tool, "name"));
    CEDAR_TRY(entry.parameters, text_of(tool, "parameters"));
  }
  return rules;
}

Status check_schema(std::string_view schema, bool closed_objects) {
  OutputRules rules;
  rules.answer = AnswerKind::json_schema;
  rules.schema = std::string(schema);
  rules.closed_objects = closed_objects;
  const auto graph = compile_output(rules, {});
  if (!graph) return graph.error();
  return {};
}

Status check_tool(const ToolRules& tool) {
  OutputRules rules;
  rules.calls = CallChoice::required;
  rules.tools.push_back(tool);
  const auto graph = compile_output(rules, {});
  if (!graph) return graph.error();
  return {};
}

}  // namespace cedar::engine::structured
