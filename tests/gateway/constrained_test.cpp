// Constrained answers of the demo model, which knows nothing of JSON or tools, over HTTP.

#include "tests/gateway/demo_fixture.h"
#include "tests/support/schema_validator.h"

namespace cedar::gateway {
namespace {

using testing::HasSubstr;

class ConstrainedTest : public DemoTest {
 protected:
  Json answer(const std::string& fields, int status = 200) {
    const auto reply = test::post(port(), "/v1/chat/completions", body("Hello", fields));
    EXPECT_TRUE(reply);
    if (!reply) return {};
    EXPECT_EQ(reply->status, status) << reply->body;
    return Json::parse(reply->body);
  }
};

constexpr const char* kSchema = R"({"type":"object","properties":{
  "id":{"type":"integer","minimum":0,"maximum":999},"name":{"type":"string","maxLength":8},
  "state":{"enum":["open","closed"]},"tags":{"type":"array","items":{"type":"boolean"},"maxItems":2}},
  "required":["id","name","state","tags"],"additionalProperties":false})";

constexpr const char* kTools = R"("tools":[
  {"type":"function","function":{"name":"get_weather","strict":true,"parameters":{"type":"object",
    "properties":{"city":{"type":"string","maxLength":8},"days":{"type":"integer","minimum":1,"maximum":9}},
    "required":["city","days"],"additionalProperties":false}}},
  {"type":"function","function":{"name":"stop_all"}}],)";

std::string schema_format(const std::string& strict) {
  return R"("response_format":{"type":"json_schema","json_schema":{"name":"a","strict":)" + strict +
         R"(,"schema":)" + kSchema + "}},";
}

TEST_F(ConstrainedTest, ASchemaGivesValidJson) {
  const test::SchemaValidator validator(Json::parse(kSchema));
  for (const char* extra : {"", R"("temperature":1.3,"seed":5,"n":2,)"}) {
    for (const char* strict : {"true", "false"}) {
      const Json reply = answer(schema_format(strict) + extra + R"("max_tokens":200,)");
      for (const Json& choice : reply["choices"]) {
        EXPECT_EQ(choice["finish_reason"], "stop");
        const auto text = choice["message"]["content"].get<std::string>();
        const Json value = Json::parse(text, nullptr, false);
        ASSERT_FALSE(value.is_discarded()) << text;
        EXPECT_TRUE(validator.accepts(value)) << text;
      }
    }
  }
  EXPECT_TRUE(test::eventually([&] { return idle(); }));
}

TEST_F(ConstrainedTest, JsonObjectModeBeginsAnObjectAndLengthMayEndIt) {
  const Json reply = answer(
      R"("response_format":{"type":"json_object"},"max_tokens":5,"temperature":1,"seed":3,)");
  const Json& choice = reply["choices"][0];
  EXPECT_EQ(choice["message"]["content"].get<std::string>().front(), '{');
  EXPECT_THAT((std::vector<std::string>{"length", "stop"}),
              testing::Contains(choice["finish_reason"].get<std::string>()));
}

TEST_F(ConstrainedTest, ReasoningComesFirstAndFree) {
  const Json reply = answer(schema_format("true") + R"("thinking":{"type":"enabled"},
    "logit_bias":{"4085":100},"max_tokens":200,)");
  const Json& message = reply["choices"][0]["message"];
  EXPECT_TRUE(test::SchemaValidator(Json::parse(kSchema))
                  .accepts(Json::parse(message["content"].get<std::string>())));
  EXPECT_GE(reply["usage"]["completion_tokens_details"]["reasoning_tokens"].get<int>(), 1);
}

TEST_F(ConstrainedTest, ForcedCallsAreParsed) {
  for (const char* choice :
       {R"("tool_choice":"required",)",
        R"("tool_choice":{"type":"function","function":{"name":"get_weather"}},)"}) {
    const Json reply =
        answer(std::string(kTools) + choice +
               R"("parallel_tool_calls":false,"temperature":1.2,"seed":9,"max_tokens":400,)");
    const Json& first = reply["choices"][0];
    EXPECT_EQ(first["finish_reason"], "tool_calls");
    const Json& calls = first["message"]["tool_calls"];
    ASSERT_EQ(calls.size(), 1U);
    const auto name = calls[0]["function"]["name"].get<std::string>();
    const Json arguments = Json::parse(calls[0]["function"]["arguments"].get<std::string>());
    if (std::string(choice).find("get_weather") != std::string::npos) {
      EXPECT_EQ(name, "get_weather");
    }
    if (name == "get_weather") {
      EXPECT_TRUE(arguments["city"].is_string());
      EXPECT_GE(arguments["days"].get<int>(), 1);
    } else {
      EXPECT_EQ(name, "stop_all");
      EXPECT_TRUE(arguments.empty());
    }
  }
}

TEST_F(ConstrainedTest, ChoiceNoneNeverCalls) {
  const Json reply = answer(std::string(kTools) +
                            R"("tool_choice":"none","logit_bias":{"4093":100},"max_tokens":20,)");
  EXPECT_FALSE(reply["choices"][0]["message"].contains("tool_calls"));
}

TEST_F(ConstrainedTest, StreamsCarryTheSameText) {
  const Json whole = answer(schema_format("true"));
  const auto reply = test::post(port(), "/v1/chat/completions",
                                body("Hello", schema_format("true") + R"("stream":true,)"));
  std::string streamed;
  for (const std::string& data : test::sse_data(reply->body)) {
    if (data == "[DONE]") break;
    const Json delta = Json::parse(data)["choices"][0]["delta"];
    if (delta.contains("content")) streamed += delta["content"].get<std::string>();
  }
  EXPECT_EQ(streamed, whole["choices"][0]["message"]["content"]);
}

TEST_F(ConstrainedTest, UnsupportedSchemasAreRefusedBeforeTheyRun) {
  const Json reply = answer(
      R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object",
      "properties":{"a":{"not":{}}}}}},)",
      400);
  EXPECT_EQ(reply["error"]["param"], "response_format.json_schema.schema");
  EXPECT_THAT(reply["error"]["message"].get<std::string>(),
              HasSubstr("not at #/properties/a is not supported"));
}

}  // namespace
}  // namespace cedar::gateway
