// Whole outputs: reasoning before the constraint, call markup as the output parser reads it, and which of the
// two may begin.

#include <nlohmann/json.hpp>

#include "model/chat_parser.h"
#include "tests/engine/structured/fixture.h"
#include "tests/support/schema_validator.h"

namespace cedar::engine::structured {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

constexpr TokenId kEos = 1;

const char* kWeather = R"({"type":"object","properties":{
  "city":{"type":"string","minLength":2,"maxLength":12},
  "unit":{"enum":["C","F"]},
  "days":{"type":"integer","minimum":1,"maximum":9},
  "tags":{"type":"array","items":{"type":"string","maxLength":6},"maxItems":3},
  "note":{"anyOf":[{"type":"string","pattern":"^[a-z ]{1,9}$"},{"type":"null"},{"$ref":"#/$defs/where"}]}},
  "required":["city","days"],
  "$defs":{"where":{"type":"object","properties":{"x":{"type":"number"}},"required":["x"],
    "additionalProperties":false}}})";

OutputRules forced_calls() {
  OutputRules rules;
  rules.calls = CallChoice::required;
  rules.tools = {{"get_weather", kWeather}, {"util::now", R"({"type":"object"})"}};
  return rules;
}

/// Markup with each marker as its token.
std::vector<TokenId> tokens_of(const std::string& text) {
  return TestVocabulary::demo().tokenizer->encode(text);
}

bool follows(const OutputRules& rules, const std::string& text) {
  return bool{takes(TestVocabulary::demo().start(rules), tokens_of(text))};
}

std::string block(const std::string& invokes) {
  return "\n\n<｜DSML｜ calls>\n" + invokes + "\n</｜DSML｜ calls>";
}
std::string invoke(const std::string& name, const std::string& parameters) {
  return "<｜DSML｜ invoke name=\"" + name + "\">\n" + parameters + "\n</｜DSML｜ invoke>";
}
std::string parameter(const std::string& name, const std::string& value, bool is_string) {
  return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + (is_string ? "true" : "false") +
         "\">" + value + "</｜DSML｜ parameter>";
}

const std::string kCity = parameter("city", "Rome <3", true);
const std::string kDays = parameter("days", "3", false);

TEST(Calls, ForcedOnesFollowTheMarkup) {
  const OutputRules rules = forced_calls();
  const std::string weather = invoke("get_weather", kCity + "\n" + kDays);
  EXPECT_TRUE(follows(rules, block(weather)));
  EXPECT_TRUE(follows(rules, block(weather + "\n" + invoke("util::now", "") + "\n" + weather)));
  EXPECT_TRUE(follows(rules, block(invoke("util::now", ""))));
  EXPECT_FALSE(follows(rules, weather));
  EXPECT_FALSE(follows(rules, ""));
  EXPECT_FALSE(follows(rules, "Sure!" + block(weather)));
  EXPECT_FALSE(follows(rules, block("")));
  EXPECT_FALSE(follows(rules, block(invoke("other", ""))));
  EXPECT_FALSE(follows(rules, block(weather) + " more"));

  OutputRules single = rules;
  single.parallel_calls = false;
  EXPECT_TRUE(follows(single, block(weather)));
  EXPECT_FALSE(follows(single, block(weather + "\n" + weather)));
}

TEST(Calls, ParametersMatchTheSchema) {
  const OutputRules rules = forced_calls();
  const auto call = [&](const std::string& parameters) {
    return follows(rules, block(invoke("get_weather", parameters)));
  };
  EXPECT_TRUE(call(kCity + "\n" + parameter("unit", "C", true) + "\n" + kDays));
  EXPECT_TRUE(call(kCity + "\n" + kDays + "\n" + parameter("tags", R"(["a", "b\n"])", false)));
  EXPECT_TRUE(call(kCity + "\n" + kDays + "\n" + parameter("note", "ab c", true)));
  EXPECT_TRUE(call(kCity + "\n" + kDays + "\n" + parameter("note", "null", false)));
  EXPECT_TRUE(call(kCity + "\n" + kDays + "\n" + parameter("note", R"({"x": -1.5})", false)));
  EXPECT_FALSE(call(""));
  EXPECT_FALSE(call(kCity));
  EXPECT_FALSE(call(kDays));
  EXPECT_FALSE(call(kCity + kDays));
  EXPECT_FALSE(call(kCity + "\n" + kCity + "\n" + kDays));
  EXPECT_FALSE(call(kCity + "\n" + parameter("days", "3", true)));
  EXPECT_FALSE(call(kCity + "\n" + parameter("days", "12", false)));
  EXPECT_FALSE(call(parameter("city", "\"Rome\"", false) + "\n" + kDays));
  EXPECT_FALSE(call(parameter("city", "R", true) + "\n" + kDays));
  EXPECT_FALSE(call(kCity + "\n" + parameter("unit", "K", true) + "\n" + kDays));
  EXPECT_FALSE(call(kCity + "\n" + kDays + "\n" + parameter("note", "NULL", true)));
  EXPECT_FALSE(call(kCity + "\n" + kDays + "\n" + parameter("else", "1", false)));
}

TEST(Calls, WithoutASchemaAnyParametersDo) {
  OutputRules rules = forced_calls();
  rules.tools = {{"f", ""}};
  EXPECT_TRUE(follows(rules, block(invoke("f", ""))));
  EXPECT_TRUE(
      follows(rules, block(invoke("f", parameter("a", "x\ny", true) + "\n" +
                                           parameter("b é", R"([1, {"c": null}])", false)))));
  EXPECT_FALSE(follows(rules, block(invoke("f", parameter("a", "[1", false)))));
}

TEST(Calls, MarkersAreTokensAndNotSpelledOut) {
  TestVocabulary& vocabulary = TestVocabulary::demo();
  const std::string text = block(invoke("util::now", ""));
  EXPECT_FALSE(takes(vocabulary.start(forced_calls()), vocabulary.tokenizer->encode(text, false)));
  // Inside a value, neither: the parser would end the value there.
  OutputState state = vocabulary.start(forced_calls());
  const std::string begun =
      "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter "
      "name=\"city\" string=\"true\">";
  for (const TokenId id : tokens_of(begun)) ASSERT_TRUE(state.accept(id));
  EXPECT_FALSE(takes(state, vocabulary.tokenizer->encode("a</｜DSML｜", false), false));
  EXPECT_FALSE(takes(state, vocabulary.tokenizer->encode("a</think>", false), false));
  EXPECT_TRUE(takes(state, vocabulary.tokenizer->encode("a</thin", false), false));
}

TEST(Calls, AutoMayAnswerOrCall) {
  OutputRules rules = forced_calls();
  rules.calls = CallChoice::allowed;
  const std::string calls = block(invoke("get_weather", kCity + "\n" + kDays));
  for (const std::string& text :
       {std::string("Just < text.\n"), std::string(), calls, "Let me see." + calls}) {
    EXPECT_TRUE(follows(rules, text)) << text;
  }
  EXPECT_FALSE(follows(rules, "Let me see." + block(invoke("get_weather", kCity))));
  EXPECT_FALSE(follows(rules, calls + "Done."));
  EXPECT_FALSE(follows(rules, "｜DSML｜"));  // no "<" before it

  rules.answer = AnswerKind::json_object;
  EXPECT_TRUE(follows(rules, R"({"a": 1})"));
  EXPECT_TRUE(follows(rules, calls));
  EXPECT_FALSE(follows(rules, "text"));
  EXPECT_FALSE(follows(rules, "{}" + calls));
}

TEST(Calls, ForbiddenOnesCannotBegin) {
  const OutputRules rules;  // free text, no calls
  EXPECT_TRUE(follows(rules, "anything < at all </DSML>"));
  EXPECT_FALSE(follows(rules, "x<｜DSML｜"));
  EXPECT_FALSE(takes(TestVocabulary::demo().start(rules),
                     TestVocabulary::demo().tokenizer->encode("<｜DSML｜", false), false));
}

TEST(Reasoning, IsFreeUntilItsEndToken) {
  OutputRules rules = schema_rules(R"({"type":"integer"})");
  rules.starts_in_reasoning = true;
  EXPECT_TRUE(follows(rules, "Hm, {\"a\": <b> \xC3 ...</think>12"));
  EXPECT_TRUE(follows(rules, "</think>12"));
  EXPECT_FALSE(follows(rules, "12"));
  EXPECT_FALSE(follows(rules, "Hm</think>twelve"));
  EXPECT_FALSE(follows(rules, "Hm</think>1</think>2"));
  EXPECT_FALSE(follows(rules, "Hm <｜DSML｜ calls>"));
  EXPECT_FALSE(follows(rules, "Hm<｜User｜>"));
  OutputState state = TestVocabulary::demo().start(rules);
  EXPECT_FALSE((*state.mask())->allows(kEos));

  OutputRules calls = forced_calls();
  calls.starts_in_reasoning = true;
  EXPECT_TRUE(follows(calls, "Weather!</think>" + block(invoke("util::now", ""))));
  EXPECT_FALSE(follows(calls, block(invoke("util::now", ""))));
}

TEST(Rules, TravelAsText) {
  OutputRules rules = forced_calls();
  rules.starts_in_reasoning = true;
  rules.parallel_calls = false;
  rules.answer = AnswerKind::json_schema;
  rules.schema = R"({"type":"string","pattern":"^é\n$"})";
  rules.closed_objects = true;
  const auto back = output_rules_from_text(to_text(rules));
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(*back, rules);
  for (const char* text :
       {"", "[]", "{}", R"({"reasoning":2})",
        R"({"reasoning":0,"answer":9,"schema":"","closed":0,"calls":0,"parallel":1,
                               "tools":[]})",
        R"({"reasoning":0,"answer":0,"schema":"","closed":0,"calls":0,"parallel":1,
                               "tools":[1]})"}) {
    EXPECT_FALSE(output_rules_from_text(text)) << text;
    EXPECT_FALSE(TestVocabulary::demo().constraints->start(text)) << text;
  }
}

TEST(Rules, BadToolsAreRefused) {
  const std::vector<std::pair<ToolRules, const char*>> cases{
      {{"a\"b", "{}"}, "name cannot stand"},
      {{"", "{}"}, "name cannot stand"},
      {{"f", "[]"}, "no object"},
      {{"f", R"({"type":"array"})"}, "type at # must be object"},
      {{"f", R"({"anyOf":[{}]})"}, "anyOf at #"},
      {{"f", R"({"properties":{"a<b":{}}})"}, "call markup cannot hold"},
      {{"f", R"({"properties":{"a":{"not":{}}}})"}, "not at #/properties/a"},
      {{"f", R"({"$ref":"#"})"}, "$ref"},
  };
  for (const auto& [tool, complaint] : cases) {
    const Status status = check_tool(tool);
    ASSERT_FALSE(status) << tool.name << tool.parameters;
    EXPECT_THAT(status.error().context, HasSubstr(complaint));
  }
  EXPECT_TRUE(check_tool({"f", R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"object"}}})"}));
}

/// What a random model writes under the rules, read by the output parser.
model::ParsedMessage random_message(const OutputRules& rules, uint64_t seed) {
  TestVocabulary& vocabulary = TestVocabulary::demo();
  OutputState state = vocabulary.start(rules);
  std::mt19937_64 random(seed);
  model::ChatParser parser({rules.starts_in_reasoning, {}});
  model::ParsedMessage message;
  for (int i = 0; i < 4000 && !state.finished(); ++i) {
    const auto mask = state.mask();
    EXPECT_TRUE(mask) << mask.error().message();
    std::vector<TokenId> all, markers;
    for (TokenId id = 0; mask && id < (*mask)->size(); ++id) {
      if (!(*mask)->allows(id)) continue;
      all.push_back(id);
      if (vocabulary.tokenizer->is_added(id)) markers.push_back(id);
    }
    if (all.empty()) break;
    // Few of the allowed tokens lead on from free text: "<", "/" and markers do.
    if (i % 2 == 0) {
      for (const char* text : {"<", "/", "</"}) {
        const auto found = vocabulary.by_bytes.find(text);
        if (found != vocabulary.by_bytes.end() && (*mask)->allows(found->second)) {
          markers.push_back(found->second);
        }
      }
    }
    const auto& from = !markers.empty() && random() % 2 == 0 ? markers : all;
    const TokenId token = from[random() % from.size()];
    EXPECT_TRUE(state.accept(token));
    if (token != kEos)
      model::append(message, parser.push(vocabulary.tokenizer->token_bytes(token)));
  }
  EXPECT_TRUE(state.finished());
  const auto finish = parser.finish(model::OutputEnd::stop_token);
  model::append(message, finish.segments);
  EXPECT_EQ(parser.discarded_bytes(), 0);
  return message;
}

TEST(Calls, ARandomModelsCallsAreReadByTheOutputParser) {
  const test::SchemaValidator weather(Json::parse(kWeather), true);
  size_t calls = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    OutputRules rules = forced_calls();
    rules.starts_in_reasoning = seed % 3 == 0;
    rules.parallel_calls = seed % 2 == 0;
    const model::ParsedMessage message = random_message(rules, seed);
    EXPECT_EQ(message.content, "");
    ASSERT_GE(message.calls.size(), 1U);
    if (!rules.parallel_calls) {
      EXPECT_EQ(message.calls.size(), 1U);
    }
    for (const model::ParsedCall& call : message.calls) {
      ++calls;
      const Json arguments = Json::parse(call.arguments, nullptr, false);
      ASSERT_TRUE(arguments.is_object()) << call.arguments;
      if (call.name == "get_weather") {
        EXPECT_TRUE(weather.accepts(arguments)) << call.arguments;
      } else {
        EXPECT_EQ(call.name, "util::now");
        EXPECT_TRUE(arguments.empty());
      }
    }
  }
  EXPECT_GT(calls, 60U);
}

}  // namespace
}  // namespace cedar::engine::structured
