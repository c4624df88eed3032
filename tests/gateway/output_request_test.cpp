// Which requests constrain their output, by what rules, and which of them are refused.

#include "gateway/output_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gateway/error_mapping.h"
#include "gateway/prepare.h"
#include "tests/gateway/cards.h"

namespace cedar::gateway {
namespace {

using engine::structured::AnswerKind;
using engine::structured::CallChoice;
using engine::structured::OutputRules;
using testing::HasSubstr;

#define TOOL(name, rest) R"({"type":"function","function":{"name":")" name R"(")" rest "}}"
#define STRICT                                                                             \
  R"(,"strict":true,"parameters":{"type":"object","properties":{"a":{"type":"integer"}},)" \
  R"("required":["a"],"additionalProperties":false})"
#define ODD R"(,"parameters":{"type":"object","properties":{"a":{"not":{}}}})"

Result<PreparedRequest> chat(const std::string& fields) {
  const ModelCard card = demo_card();
  CEDAR_TRY(Json json,
            read_body(R"({"messages":[{"role":"user","content":"Hi"}],)" + fields + "}"));
  CEDAR_TRY(ApiRequest request, read_chat_request(std::move(json), card));
  return prepare(std::move(request), card, 7);
}

/// None where the output is free.
std::optional<OutputRules> rules_of(const std::string& fields) {
  const auto request = chat(fields);
  EXPECT_TRUE(request) << request.error().message();
  if (!request || request->constraint.empty()) return {};
  EXPECT_EQ(request->sequence(0).constraint, request->constraint);
  const auto rules = engine::structured::output_rules_from_text(request->constraint);
  EXPECT_TRUE(rules);
  return *rules;
}

TEST(OutputRequest, FreeOutputsHaveNoRules) {
  for (const char* fields :
       {R"("n":1)", R"("response_format":{"type":"text"})", R"("tools":[],"tool_choice":"none")",
        R"("tools":[)" TOOL("f", "") R"(],"tool_choice":"auto")",
        R"("tools":[)" TOOL("f", ODD) R"(])", R"("tool_choice":null,"response_format":null)"}) {
    EXPECT_FALSE(rules_of(fields)) << fields;
  }
}

TEST(OutputRequest, ResponseFormats) {
  EXPECT_EQ(rules_of(R"("response_format":{"type":"json_object"})")->answer,
            AnswerKind::json_object);
  for (const char* strict : {"true", "false"}) {
    const auto rules =
        rules_of(R"("response_format":{"type":"json_schema","json_schema":{"name":"x","strict":)" +
                 std::string(strict) + R"(,"schema":{"type":"object"}}})");
    EXPECT_EQ(rules->answer, AnswerKind::json_schema);
    EXPECT_EQ(rules->closed_objects, std::string(strict) == "true");
    EXPECT_EQ(rules->calls, CallChoice::forbidden);
    EXPECT_EQ(Json::parse(rules->schema), Json::parse(R"({"type":"object"})"));
  }
}

TEST(OutputRequest, ToolChoices) {
  const std::string tools =
      R"("tools":[)" TOOL("f", STRICT) "," TOOL("g", "") "," TOOL("h", ODD) "],";
  auto rules = rules_of(tools + R"("tool_choice":"required")");
  EXPECT_EQ(rules->calls, CallChoice::required);
  ASSERT_EQ(rules->tools.size(), 3U);
  EXPECT_THAT(rules->tools[0].parameters, HasSubstr("integer"));
  EXPECT_THAT(rules->tools[1].parameters, HasSubstr("properties"));  // none declared, none allowed
  EXPECT_EQ(rules->tools[2].parameters, "");  // cannot be enforced and need not be
  EXPECT_TRUE(rules->parallel_calls);

  rules = rules_of(tools + R"("tool_choice":{"type":"function","function":{"name":"g"}},
                              "parallel_tool_calls":false)");
  ASSERT_EQ(rules->tools.size(), 1U);
  EXPECT_EQ(rules->tools[0].name, "g");
  EXPECT_FALSE(rules->parallel_calls);

  rules = rules_of(tools + R"("tool_choice":"none")");
  EXPECT_EQ(rules->calls, CallChoice::forbidden);
  rules = rules_of(tools + R"("response_format":{"type":"json_object"})");
  EXPECT_EQ(rules->calls, CallChoice::allowed);
  EXPECT_EQ(rules->tools.size(), 3U);
  EXPECT_EQ(rules_of(tools + R"("n":1)")->calls, CallChoice::allowed);  // f is strict
  const std::string plain = R"("tools":[)" TOOL("g", "") "],";
  EXPECT_FALSE(rules_of(plain + R"("parallel_tool_calls":true)"));
  EXPECT_FALSE(rules_of(plain + R"("parallel_tool_calls":false)")->parallel_calls);
}

TEST(OutputRequest, NamesAreThoseOfThePrompt) {
  const std::string tool =
      R"("tools":[{"type":"function","namespace":"net","function":{"name":"get"}}],)";
  for (const char* name : {"get", "net::get"}) {
    const auto rules = rules_of(tool + R"("tool_choice":{"type":"function","function":{"name":")" +
                                name + R"("}})");
    ASSERT_EQ(rules->tools.size(), 1U);
    EXPECT_EQ(rules->tools[0].name, "net::get");
  }
}

TEST(OutputRequest, ReasoningIsPartOfTheRules) {
  const std::string format = R"("response_format":{"type":"json_object"},)";
  EXPECT_FALSE(rules_of(format + R"("thinking":{"type":"disabled"})")->starts_in_reasoning);
  EXPECT_TRUE(rules_of(format + R"("thinking":{"type":"enabled"})")->starts_in_reasoning);
}

struct Refusal {
  std::string fields;
  const char* param;
  const char* message;
};

TEST(OutputRequest, RefusalsNameTheField) {
  const std::vector<Refusal> cases{
      {R"("tool_choice":"required")", "tool_choice", "tools is empty"},
      {R"("tool_choice":"sometimes")", "tool_choice", "must be none, auto, required"},
      {R"("tool_choice":5)", "tool_choice", "string or an object"},
      {R"("tool_choice":{"type":"custom"})", "tool_choice.type", "must be function"},
      {R"("tool_choice":{"type":"function"})", "tool_choice.function", "is missing"},
      {R"("tool_choice":{"function":{"name":""}})", "tool_choice.function.name", "is missing"},
      {R"("tools":[)" TOOL("f", "") R"(],"tool_choice":{"function":{"name":"g"}})",
       "tool_choice.function.name", "none of the tools"},
      {R"("tools":[)" TOOL("f", "") "," TOOL("g",
                                             R"(,"strict":true,"parameters":{"type":"object",)"
                                             R"("properties":{"a":{"uniqueItems":true}}})") "]",
       "tools[1].function.parameters", "uniqueItems at #/properties/a is not supported"},
      {R"("tools":[)" TOOL("f", R"(,"strict":true,"parameters":[])") "]",
       "tools[0].function.parameters", "no object"},
      {R"("tools":[)" TOOL("f", R"(,"strict":1)") "]", "tools[0].function.strict", ""},
      {R"("tools":[)" TOOL("a<b", "") R"(],"tool_choice":"required")", "tools[0].function.name",
       "call markup"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"a"}})",
       "response_format.json_schema.schema", "is missing"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":[1]}})",
       "response_format.json_schema.schema", "must be an object"},
      {R"("response_format":{"type":"json_schema","json_schema":{"strict":"yes","schema":{}}})",
       "response_format.json_schema.strict", ""},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object",)"
       R"("patternProperties":{}}}})",
       "response_format.json_schema.schema", "patternProperties at # is not supported"},
      {R"("parallel_tool_calls":"no")", "parallel_tool_calls", "must be"},
  };
  for (const Refusal& c : cases) {
    const auto request = chat(c.fields);
    ASSERT_FALSE(request) << c.fields;
    const ApiError error = to_api_error(request.error());
    EXPECT_EQ(error.status, 400) << c.fields;
    EXPECT_EQ(error.param, c.param) << error.message;
    EXPECT_THAT(error.message, HasSubstr(c.message)) << c.fields;
  }
}

TEST(OutputRequest, ErrorsDoNotRepeatWhatToolsSay) {
  const auto request =
      chat(R"("tools":[{"type":"function","function":{"name":{"secret":"pa55"}}}])");
  ASSERT_FALSE(request);
  EXPECT_THAT(request.error().message(), testing::Not(HasSubstr("pa55")));
}

}  // namespace
}  // namespace cedar::gateway
