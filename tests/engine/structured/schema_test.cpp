// Which documents a schema lets through, which schemas are refused, and that refusals are quick.

#include <nlohmann/json.hpp>

#include "tests/engine/structured/fixture.h"
#include "tests/support/schema_validator.h"

namespace cedar::engine::structured {
namespace {

using testing::HasSubstr;

struct Documents {
  const char* schema;
  std::vector<const char*> accepted, refused;
};

const std::vector<Documents>& table() {
  static const std::vector<Documents> cases{
      {R"({"type":"boolean"})",
       {"true", "false"},
       {"null", "tru", "\"true\"", " true", "truefalse"}},
      {R"({"type":"null"})", {"null"}, {"0"}},
      {R"({"type":["integer","null"]})", {"null", "12"}, {"1.5", "\"a\""}},
      {R"({"type":"integer","nullable":true})", {"null", "12"}, {"false"}},
      {R"({"type":"integer"})",
       {"0", "-1", "17", "9223372036854775807", "-9223372036854775808"},
       {"01", "+1", "-", "-0", "1.0", "1e3", "9223372036854775808", ""}},
      {R"({"type":"integer","minimum":-12,"maximum":105})",
       {"-12", "-1", "0", "9", "10", "99", "100", "105"},
       {"-13", "-20", "106", "110", "1000"}},
      {R"({"type":"integer","exclusiveMinimum":3.5,"exclusiveMaximum":10})",
       {"4", "9"},
       {"3", "10", "-4"}},
      {R"({"type":"integer","minimum":1000})", {"1000", "1001", "99999"}, {"999", "1", "-5"}},
      {R"({"type":"integer","maximum":-7})", {"-7", "-8", "-70"}, {"-6", "0", "7"}},
      {R"({"type":"number"})",
       {"0", "-0", "1.5", "-12.25e-3", "1E+10", "123456789012345"},
       {".5", "1.", "1e", "00", "1e100", "NaN"}},
      {R"({"type":"number","minimum":0.25,"exclusiveMaximum":2})",
       {"0.25", "0.250", "0.3", "1", "1.9999", "1.0"},
       {"0.2", "0", "2", "2.0", "-1", "0.24"}},
      {R"({"type":"number","minimum":-1.5,"maximum":1.5})",
       {"-1.5", "-1.50", "-0.1", "0", "1.5", "1.49"},
       {"-1.6", "1.51", "2", "-2"}},
      {R"({"type":"string"})",
       {R"("")", R"("a")", R"("ä中🎉 \" \\ \/ \n \u00e9 \uD83C\uDF89")"},
       {"a", R"(")", R"("\x")", "\"\n\"", R"("\uD83C")", R"("\uDF89")", R"("a"b)"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("äb中")", R"("🎉\n")", R"("\uD83C\uDF89x")"},
       {R"("a")", R"("abcd")", R"("")"}},
      {R"({"type":"string","pattern":"^[a-c]{2,3}$"})",
       {R"("ab")", R"("abc")"},
       {R"("a")", R"("abcd")", R"("xy")"}},
      {R"({"type":"string","pattern":"b+|^x"})",
       {R"("abc")", R"("b")", R"("xyz")", R"("中b")"},
       {R"("yx")", R"("")"}},
      {R"({"type":"string","pattern":"^(foo|ba[rz])(-\\d+)?$"})",
       {R"("foo")", R"("baz-12")"},
       {R"("bax")", R"("foo-")"}},
      {R"({"type":"string","pattern":"^(a|bb)*$","minLength":3,"maxLength":4})",
       {R"("aaa")", R"("bba")", R"("bbbb")"},
       {R"("bb")", R"("b")", R"("aaaaa")"}},
      {R"({"type":"string","pattern":"^[^\"]\"\\\\\\n$"})", {R"("x\"\\\n")"}, {R"("\"\"\\\n")"}},
      {R"({"type":"string","format":"date"})",
       {R"("2024-02-29")", R"("1999-12-31")"},
       {R"("2023-02-29")", R"("2024-13-01")", R"("2024-04-31")", R"("1900-02-29")"}},
      {R"({"type":"string","format":"date-time"})",
       {R"("2024-01-31T23:59:59Z")", R"("2024-01-31T00:00:00.5+02:00")"},
       {R"("2024-01-31")", R"("2024-01-31T24:00:00Z")", R"("2024-01-31T00:00:00")"}},
      {R"({"type":"string","format":"uuid"})",
       {R"("123e4567-e89b-12d3-a456-426614174000")"},
       {R"("123e4567")"}},
      {R"({"type":"string","format":"duration"})",
       {R"("P1Y2M3DT4H5M6S")", R"("PT30M")"},
       {R"("P")"}},
      {R"({"type":"string","format":"email"})",
       {R"("a.b@example.org")"},
       {R"("a@b")", R"("a@@b.c")"}},
      {R"({"type":"string","format":"ipv4"})", {R"("255.0.13.9")"}, {R"("256.1.1.1")"}},
      {R"({"enum":["red","re\"d",12,null,{"a":[1]}]})",
       {R"("red")", R"("re\"d")", "12", "null", R"({"a": [1]})"},
       {R"("blue")", "1", R"({"a":[2]})"}},
      {R"({"enum":["a",1,true],"type":"string"})", {R"("a")"}, {"1", "true"}},
      {R"({"const":{"b":1.5,"a":"x"}})", {R"({"b":1.5,"a":"x"})"}, {R"({"a":"x","b":1.5})"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
       {"[1]", "[1, 2]", "[\n  1,\n  2,\n  3\n]"},
       {"[]", "[1,2,3,4]", "[1,]", "[\"a\"]", "[1  ]"}},
      {R"({"type":"array","items":{"type":"boolean"}})", {"[]", "[true,false]"}, {"[1]", "[true"}},
      {R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}},
      {R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"},"minItems":2})",
       {R"([1,"a"])", R"([1,"a",null,null])"},
       {"[1]", R"(["a",1])", R"([1,"a",2])"}},
      {R"({"prefixItems":[{"type":"integer"},{"type":"integer"}],"items":false})",
       {"[]", "[1]", "[1,2]"},
       {"[1,2,3]"}},
      {R"({"type":"array","prefixItems":[{"type":"null"}],"minItems":3,"maxItems":4})",
       {"[null,1,{}]", "[null,1,2,3]"},
       {"[null]", "[null,1]", "[null,1,2,3,4]"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},
          "required":["a"],"additionalProperties":false})",
       {R"({"a":1})", R"({"a": 1, "b": "x"})", "{\n\t\"a\": 1\n}"},
       {"{}", R"({"b":"x"})", R"({"a":1,"c":2})", R"({"a":1,})", R"({"b":"x","a":1})"}},
      {R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"additionalProperties":false})",
       {"{}", R"({"b":1})", R"({"a":1,"c":[]})", R"({"c":{"z":null}})"},
       {R"({"d":1})", R"({,"a":1})"}},
      {R"({"type":"object","properties":{"ab":{"type":"integer"}},
          "additionalProperties":{"type":"boolean"}})",
       {"{}", R"({"ab":1,"abc":true})", R"({"a":false,"é":true})"},
       {R"({"ab":true})", R"({"abc":1})", R"({"":true})", R"({"a\u0062":true})"}},
      {R"({"type":"object","required":["x"],"additionalProperties":{"type":"null"}})",
       {R"({"x":null})", R"({"x":null,"y":null})"},
       {"{}", R"({"y":null})", R"({"x":1})"}},
      {R"({"properties":{"a":false,"b":{"type":"null"}},"additionalProperties":false})",
       {"{}", R"({"b":null})"},
       {R"({"a":1})"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"object","properties":{"k":{"const":1}},
          "required":["k"],"additionalProperties":false}]})",
       {"5", R"({"k":1})"},
       {"{}", "\"5\""}},
      {R"({"oneOf":[{"type":"string"},{"type":"null"}]})", {"null", R"("x")"}, {"1"}},
      {R"({"allOf":[{"$ref":"#/$defs/a~1b"}],"$defs":{"a/b":{"enum":["q"]}}})", {R"("q")"}, {"1"}},
      {R"({"$ref":"#/definitions/tree","definitions":{"tree":{"type":"object","properties":{
          "v":{"type":"integer"},"kids":{"type":"array","items":{"$ref":"#/definitions/tree"}}},
          "required":["v"],"additionalProperties":false}}})",
       {R"({"v":1})", R"({"v":1,"kids":[{"v":2,"kids":[]},{"v":3}]})"},
       {R"({"kids":[]})", R"({"v":1,"kids":[{}]})"}},
      {R"({"type":"object","properties":{"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},
          "required":["next"],"additionalProperties":false})",
       {R"({"next":null})", R"({"next":{"next":{"next":null}}})"},
       {R"({})", R"({"next":{}})"}},
      {"{}", {"1", R"("a")", R"({"a":[true,null,1.5]})", "[]"}, {"", "{]", "nul"}},
      {"true", {"[[[]]]"}, {"]"}},
      // Markers of the output may not appear in a string, other spellings may.
      {R"({"type":"string"})",
       {R"("<\/think>")", R"("<think>")", R"("｜DSM｜")", R"("\uff5cDSML\uff5c")"},
       {R"("</think>")", R"("<｜DSML｜ calls>")"}},
      {R"({"title":"T","description":"d","default":1,"examples":[1],"x-order":3,"type":"null",
          "uniqueItems":false})",
       {"null"},
       {"1"}},
  };
  return cases;
}

TEST(Schema, LetsTheRightDocumentsThrough) {
  for (const Documents& c : table()) {
    const OutputRules rules = schema_rules(c.schema);
    for (const char* text : c.accepted) {
      EXPECT_TRUE(accepts(TestVocabulary::demo(), rules, text)) << c.schema << "\n" << text;
    }
    for (const char* text : c.refused) {
      EXPECT_FALSE(accepts(TestVocabulary::demo(), rules, text)) << c.schema << "\n" << text;
    }
  }
}

// The table and the second opinion agree, so the second opinion may judge the property test.
TEST(Schema, TheValidatorForTestsAgreesOnAcceptedDocuments) {
  for (const Documents& c : table()) {
    const test::SchemaValidator validator(nlohmann::ordered_json::parse(c.schema));
    for (const char* text : c.accepted) {
      EXPECT_TRUE(validator.accepts(nlohmann::ordered_json::parse(text))) << c.schema << text;
    }
  }
}

TEST(Schema, ClosedObjectsHaveNoOtherMembersUnlessTheySay) {
  const char* silent = R"({"type":"object","properties":{"a":{"type":"integer"}}})";
  EXPECT_TRUE(accepts(TestVocabulary::demo(), schema_rules(silent), R"({"a":1,"b":2})"));
  EXPECT_FALSE(accepts(TestVocabulary::demo(), schema_rules(silent, true), R"({"a":1,"b":2})"));
  const char* open = R"({"type":"object","additionalProperties":{"type":"integer"}})";
  EXPECT_TRUE(accepts(TestVocabulary::demo(), schema_rules(open, true), R"({"b":2})"));
}

TEST(Schema, TheReleaseVocabularyTakesTheSameDocuments) {
  const char* schema =
      R"({"type":"object","properties":{"name":{"type":"string"},"tags":{"type":"array",
      "items":{"type":"string","maxLength":8}},"n":{"type":"number"}},"required":["name","tags"]})";
  for (const char* text :
       {R"({"name": "Jürgen 🎉", "tags": ["a", "日本語"], "n": -1.5e3})",
        "{\n    \"name\": \"x\",\n    \"tags\": [],\n    \"other\": {\"deep\": [[1]]}\n}"}) {
    EXPECT_TRUE(accepts(TestVocabulary::release(), schema_rules(schema), text)) << text;
  }
}

struct BadSchema {
  const char* schema;
  const char* complaint;
};

TEST(Schema, RefusalsNameKeywordAndPlace) {
  const std::vector<BadSchema> cases{
      {"{", "JSON"},
      {"3", "the schema at # is no object"},
      {R"({"type":"strin"})", "type at # must be"},
      {R"({"type":[]})", "type at # must not be an empty list"},
      {R"({"properties":{"a/b":{"type":"object","patternProperties":{}}}})",
       "patternProperties at #/properties/a~1b is not supported"},
      {R"({"items":{"not":{}}})", "not at #/items is not supported"},
      {R"({"if":{},"then":{}})", "if at # is not supported"},
      {R"({"type":"integer","multipleOf":3})", "multipleOf at #"},
      {R"({"type":"array","uniqueItems":true})", "uniqueItems at #"},
      {R"({"type":"array","contains":{}})", "contains at #"},
      {R"({"type":"object","minProperties":1})", "minProperties at #"},
      {R"({"type":"object","propertyNames":{}})", "propertyNames at #"},
      {R"x({"type":"string","pattern":"(?=a)"})x", "pattern at # uses look-around"},
      {R"({"type":"string","pattern":"(a)\\1"})", "pattern at # uses an unsupported escape"},
      {R"({"type":"string","pattern":"a\\b"})", "pattern at #"},
      {R"({"type":"string","pattern":"a^b"})", "anchor"},
      {R"({"type":"string","pattern":"(("})", "unclosed group"},
      {R"({"type":"string","pattern":"[z-a]"})", "range"},
      {R"({"type":"string","pattern":"*"})", "nothing to repeat"},
      {R"({"type":"string","pattern":"(((a{99}){99}){99}){99}"})", "pattern at # needs more than"},
      {R"({"type":"string","pattern":"^(a{1000}){1,8}$","maxLength":9000})", "pattern at #"},
      {R"({"type":"string","format":"color"})", "format at # must be date"},
      {R"({"type":"string","format":"date","pattern":"a"})", "format at #"},
      {R"({"type":"string","minLength":-1})", "minLength at #"},
      {R"({"type":"string","minLength":3,"maxLength":2})", "minLength at # is above"},
      {R"({"type":"string","maxLength":1e9})", "maxLength at #"},
      {R"({"type":"array","minItems":3,"maxItems":2})", "minItems at # is above"},
      {R"({"type":"integer","minimum":3,"maximum":2})", "minimum at # is above"},
      {R"({"type":"integer","minimum":1,"exclusiveMaximum":1})", "no value"},
      {R"({"type":"number","minimum":"1"})", "minimum at # must be a number"},
      {R"({"type":"number","minimum":1e300})", "minimum at #"},
      {R"({"$ref":"http://example.org/x"})", "$ref at # must begin with #"},
      {R"({"$ref":"#/nowhere"})", "$ref at # points to nothing"},
      {R"({"$ref":"#anchor"})", "$ref at # names an anchor"},
      {R"({"$ref":"#"})", "no value"},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "refers to itself"},
      {R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"},{"type":"null"}]},
           "b":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}]}},"$ref":"#/$defs/a"})",
       "refers to itself"},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "no value"},
      {R"({"anyOf":[]})", "anyOf at # must be a list"},
      {R"({"anyOf":[{}],"properties":{}})", "properties at # is not supported beside anyOf"},
      {R"({"allOf":[{},{}]})", "allOf at #"},
      {R"({"enum":[]})", "enum at #"},
      {R"({"enum":["</think>"]})", "enum at # spells markup"},
      {R"({"enum":[1],"minimum":2})", "minimum at # is not supported beside enum"},
      {R"({"type":"object","required":["a"],"additionalProperties":false})", "required at #"},
      {R"({"type":"object","required":"a"})", "required at #"},
      {R"({"type":"object","properties":[]})", "properties at #"},
      {R"({"type":"object","additionalProperties":3})", "additionalProperties at #"},
      {R"({"type":"object","properties":{"a":3}})", "#/properties/a"},
      {"false", "no value"},
  };
  for (const BadSchema& c : cases) {
    const Status status = check_schema(c.schema, false);
    ASSERT_FALSE(status) << c.schema;
    EXPECT_THAT(status.error().context, HasSubstr(c.complaint)) << c.schema;
  }
}

std::string repeated(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

// Each is small or within the text limit and would need far more time or memory than it may have.
TEST(Schema, HostileSchemasEndInTime) {
  std::string doubling = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 40; ++i) {
    const std::string next = R"({"$ref":"#/$defs/d)" + std::to_string(i + 1) + R"("})";
    doubling +=
        "\"d" + std::to_string(i) + R"(":{"anyOf":[)" + next + "," + next + "," + next + "]},";
  }
  doubling += R"("d40":{"type":"null"}}})";
  EXPECT_TRUE(accepts(TestVocabulary::demo(), schema_rules(doubling), "null"));

  std::string values = "1";
  for (int i = 2; i < 50'000; ++i) values += "," + std::to_string(i);
  EXPECT_FALSE(check_schema(R"({"enum":[)" + values + "]}", false));
  EXPECT_FALSE(check_schema(repeated(R"({"items":)", 500) + "{}" + repeated("}", 500), false));
  const std::string deep =
      repeated(R"({"type":"array","minItems":1,"items":)", 100) + "{}" + repeated("}", 100);
  EXPECT_FALSE(check_schema(deep, false));  // no value of 64 levels
  EXPECT_FALSE(check_schema("\"" + std::string(600'000, 'a') + "\"", false));
  std::string many = R"({"type":"object","properties":{"p":{})";
  for (int i = 0; i < 600; ++i) many += ",\"p" + std::to_string(i) + "\":{}";
  EXPECT_FALSE(check_schema(many + "}}", false));
  EXPECT_FALSE(
      check_schema(R"({"type":"array","prefixItems":[)" + repeated("{},", 5000) + "{}]}", false));
}

// A deterministic automaton for this needs 2^24 states; the walk gives up or gets through, in bounded time.
TEST(Schema, AmbiguousPatternsAreBounded) {
  OutputState state = TestVocabulary::release().start(
      schema_rules(R"({"type":"string","pattern":"^[ab]*a[ab]{24}$"})"));
  ASSERT_TRUE(takes(state, TestVocabulary::release().tokenizer->encode("\"abab", false), false));
}

TEST(Schema, NestingHasABoundAndCanAlwaysEnd) {
  OutputState state = TestVocabulary::demo().start(schema_rules("{}"));
  const TokenId open = TestVocabulary::demo().tokenizer->encode("[", false).front();
  const TokenId close = TestVocabulary::demo().tokenizer->encode("]", false).front();
  int depth = 0;
  while (state.accept(open)) ++depth;
  EXPECT_GT(depth, 50);
  EXPECT_LT(depth, 70);
  for (int i = 0; i < depth; ++i) {
    EXPECT_TRUE(state.mask());
    ASSERT_TRUE(state.accept(close)) << i;
  }
  EXPECT_TRUE(state.complete());
}

// Every level begins with something that needs levels of its own, so the bound must be seen before it begins.
TEST(Schema, GoingDeeperIsOnlyAllowedWhereTheEndStaysInReach) {
  const std::string head = repeated(R"({"type":"array","minItems":1,"items":)", 6) +
                           R"({"type":"integer"})" + repeated("}", 6);
  TestVocabulary& vocabulary = TestVocabulary::demo();
  OutputState state = vocabulary.start(schema_rules(
      R"({"type":"object","properties":{"head":)" + head +
          R"(,"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["head","next"]})",
      true));
  const std::string level = R"({"head":[[[[[[1]]]]]],"next":)";
  int levels = 0;
  for (bool deeper = true; deeper; ++levels) {
    for (size_t i = 0; deeper && i < level.size(); ++i) {
      ASSERT_TRUE(state.mask()) << "level " << levels << " byte " << i;
      deeper = state.accept(vocabulary.by_bytes.find(level.substr(i, 1))->second);
      ASSERT_TRUE(deeper || i == 0) << "level " << levels << " byte " << i;
    }
  }
  EXPECT_GT(levels, 10);
  EXPECT_TRUE(takes(state, vocabulary.tokenizer->encode(
                               "null" + repeated("}", static_cast<size_t>(levels) - 1), false)));
}

}  // namespace
}  // namespace cedar::engine::structured
