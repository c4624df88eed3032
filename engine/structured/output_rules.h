#pragma once
// What a request asks of its output, as it travels from the gateway to the decoder: a text that any process can
// compile. Knows nothing of the API's field names.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace cedar::engine::structured {

enum class AnswerKind : uint8_t {
  text,         // anything
  json_object,  // any JSON object
  json_schema,  // a value of `schema`
};

enum class CallChoice : uint8_t { forbidden, allowed, required };

struct ToolRules {
  std::string name;        // as the prompt shows it
  std::string parameters;  // JSON schema of an object; empty: any parameters
  friend bool operator==(const ToolRules&, const ToolRules&) = default;
};

struct OutputRules {
  /// The output begins inside the reasoning, which is free until its end token.
  bool starts_in_reasoning = false;
  AnswerKind answer = AnswerKind::text;
  std::string schema;  // of json_schema
  /// Objects of `schema` that do not say have no members beside those declared.
  bool closed_objects = false;
  CallChoice calls = CallChoice::forbidden;
  bool parallel_calls = true;  // false: one call at most
  std::vector<ToolRules> tools;
  friend bool operator==(const OutputRules&, const OutputRules&) = default;
};

/// Equal rules give equal texts.
std::string to_text(const OutputRules& rules);
/// Errors: invalid_argument.
Result<OutputRules> output_rules_from_text(std::string_view text);

/// Whether the schema compiles. Errors: invalid_argument (not JSON), unsupported ("KEYWORD at #/POINTER ...").
Status check_schema(std::string_view schema, bool closed_objects);
/// The same for a tool's parameters, and its name.
Status check_tool(const ToolRules& tool);

}  // namespace cedar::engine::structured
