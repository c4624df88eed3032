// Random schemas and a model that chooses at random among what the mask leaves: whatever comes out must be
// valid, and there must always be a way on.

#include <nlohmann/json.hpp>

#include "tests/engine/structured/fixture.h"
#include "tests/support/schema_validator.h"

namespace cedar::engine::structured {
namespace {

using Json = nlohmann::ordered_json;

class RandomSchema {
 public:
  explicit RandomSchema(uint64_t seed) : random_(seed) {}

  Json document() {
    Json schema = value(0);
    if (has_reference_) schema["$defs"] = Json{{"node", node()}};
    return schema;
  }

 private:
  size_t below(size_t n) { return random_() % n; }
  bool chance(size_t percent) { return below(100) < percent; }

  Json node() {
    return Json::parse(R"({"type":"object","properties":{"v":{"type":"integer"},
      "kids":{"type":"array","items":{"$ref":"#/$defs/node"},"maxItems":2}},
      "required":["v"],"additionalProperties":false})");
  }

  Json value(int depth) {
    switch (below(depth > 2 ? 6 : 11)) {
      case 0: return number("integer");
      case 1: return number("number");
      case 2: return text();
      case 3: return Json{{"type", chance(50) ? "boolean" : "null"}};
      case 4: return constants();
      case 5:
        has_reference_ = has_reference_ || depth > 0;
        return depth > 0 ? Json{{"$ref", "#/$defs/node"}} : text();
      case 6:
      case 7: return array(depth);
      case 8: return Json{{chance(50) ? "anyOf" : "oneOf", {value(depth + 1), value(depth + 1)}}};
      default: return object(depth);
    }
  }

  Json number(const char* type) {
    Json schema{{"type", type}};
    const auto low = static_cast<double>(static_cast<int64_t>(below(4000)) - 2000) / 8;
    const double high = low + 2 + static_cast<double>(below(3000)) / 8;
    if (chance(60)) schema[chance(50) ? "minimum" : "exclusiveMinimum"] = low;
    if (chance(60)) schema[chance(50) ? "maximum" : "exclusiveMaximum"] = high;
    if (chance(20)) schema["nullable"] = true;
    return schema;
  }

  Json text() {
    static const std::vector<const char*> patterns{
        "^[a-z]{2,5}$",  "^(ab|c)+d?$", "[0-9]{3}",           "^x.*y$",
        "^[^a-m]{1,4}$", "a|^b|c$",     "^\\w+( \\w+){0,3}$", "^-?[0-9]+(\\.[0-9]{1,2})?$"};
    Json schema{{"type", "string"}};
    if (chance(40)) {
      schema["pattern"] = patterns[below(patterns.size())];
      return schema;
    }
    const size_t min = below(5);
    if (chance(50)) schema["minLength"] = min;
    if (chance(70)) schema["maxLength"] = min + below(12);
    return schema;
  }

  Json constants() {
    static const Json all = Json::parse(
        R"(["red","re\"d\n","",0,12,120,-3,1.5,true,false,null,"日本",[1,[]],{"a":{"b":null}}])");
    Json list = Json::array();
    for (size_t i = 0; i <= below(6); ++i) list.push_back(all[below(all.size())]);
    return chance(20) ? Json{{"const", list[0]}} : Json{{"enum", list}};
  }

  Json array(int depth) {
    Json schema{{"type", "array"}};
    const size_t min = below(4);
    if (chance(40)) schema["minItems"] = min;
    schema["maxItems"] = min + below(4);
    if (chance(80)) schema["items"] = value(depth + 1);
    if (chance(30)) schema["prefixItems"] = Json::array({value(depth + 1), value(depth + 1)});
    return schema;
  }

  Json object(int depth) {
    static const std::vector<const char*> names{"a", "ab", "abc", "b c", "é", "x\"y", "日"};
    Json schema{{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
    for (const char* name : names) {
      if (chance(55)) continue;
      schema["properties"][name] = value(depth + 1);
      if (chance(50)) schema["required"].push_back(name);
    }
    if (chance(70)) schema["additionalProperties"] = false;
    else if (chance(50)) schema["additionalProperties"] = Json{{"type", "boolean"}};
    if (chance(10)) schema["required"].push_back("needed");
    if (schema.contains("additionalProperties") && schema["additionalProperties"] == false) {
      std::erase_if(schema["required"].get_ref<Json::array_t&>(),
                    [](const Json& name) { return name == "needed"; });
    }
    return schema;
  }

  std::mt19937_64 random_;
  bool has_reference_ = false;
};

/// Uniform over what is allowed; often, and always after a while, one that brings the end nearer.
class RandomModel {
 public:
  RandomModel(TestVocabulary& vocabulary, uint64_t seed) : vocabulary_(vocabulary), random_(seed) {}

  TokenId choose(const TokenMask& mask, size_t position) {
    if (position > 60 || random_() % 3 == 0) {
      std::vector<TokenId> closing;
      for (const TokenId id : vocabulary_.closing) {
        if (mask.allows(id)) closing.push_back(id);
      }
      if (mask.allows(1) && position > 60) return 1;
      if (!closing.empty()) return closing[random_() % closing.size()];
    }
    std::vector<TokenId> all;
    for (TokenId id = 0; id < mask.size(); ++id) {
      if (mask.allows(id)) all.push_back(id);
    }
    return all[random_() % all.size()];
  }

 private:
  TestVocabulary& vocabulary_;
  std::mt19937_64 random_;
};

struct Outcome {
  std::string text;
  bool finished = false;
};

Outcome generate(TestVocabulary& vocabulary, const OutputRules& rules, uint64_t seed,
                 size_t max_tokens = 600) {
  Outcome run;
  OutputState state = vocabulary.start(rules);
  RandomModel model(vocabulary, seed);
  for (size_t i = 0; i < max_tokens && !run.finished; ++i) {
    const auto mask = state.mask();
    EXPECT_TRUE(mask) << mask.error().message() << run.text;
    if (!mask) return run;
    EXPECT_FALSE((*mask)->empty());
    EXPECT_EQ((*mask)->allows(1), state.complete());
    const TokenId token = model.choose(**mask, i);
    EXPECT_TRUE(token == 1 || !vocabulary.tokenizer->is_added(token));
    EXPECT_TRUE(state.accept(token));
    run.finished = state.finished();
    if (!run.finished) run.text += vocabulary.tokenizer->token_bytes(token);
  }
  return run;
}

TEST(Property, WhateverARandomModelWritesIsValid) {
  int finished = 0, tried = 0, refused = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const Json schema = RandomSchema(seed).document();
    const bool closed = seed % 2 == 0;
    const std::string text = schema.dump();
    if (!check_schema(text, closed)) {
      ++refused;  // closed and "needed"; bounds that leave nothing
      continue;
    }
    const test::SchemaValidator validator(schema, closed);
    for (uint64_t i = 0; i < 3; ++i) {
      const Outcome run =
          generate(TestVocabulary::demo(), schema_rules(text, closed), seed * 7 + i);
      ++tried;
      if (!run.finished) continue;
      ++finished;
      const Json value = Json::parse(run.text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << text << "\n" << run.text;
      ASSERT_TRUE(validator.accepts(value)) << text << "\n" << run.text;
      // What was written can be written again in any cut.
      if (i == 0) {
        ASSERT_TRUE(accepts(TestVocabulary::demo(), schema_rules(text, closed), run.text))
            << text << "\n"
            << run.text;
      }
    }
  }
  EXPECT_LT(refused, 40);
  EXPECT_GT(finished, tried * 95 / 100);
}

TEST(Property, ReleaseVocabulary) {
  for (uint64_t seed = 1000; seed < 1012; ++seed) {
    const Json schema = RandomSchema(seed).document();
    if (!check_schema(schema.dump(), true)) continue;
    const Outcome run =
        generate(TestVocabulary::release(), schema_rules(schema.dump(), true), seed);
    if (!run.finished) continue;
    const Json value = Json::parse(run.text, nullptr, false);
    ASSERT_FALSE(value.is_discarded()) << schema << run.text;
    EXPECT_TRUE(test::SchemaValidator(schema, true).accepts(value)) << schema << "\n" << run.text;
  }
}

TEST(Property, JsonObjectMode) {
  OutputRules rules;
  rules.answer = AnswerKind::json_object;
  int finished = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Outcome run = generate(TestVocabulary::demo(), rules, seed, 2000);
    if (!run.finished) continue;
    ++finished;
    const Json value = Json::parse(run.text, nullptr, false);
    ASSERT_TRUE(value.is_object()) << run.text;
  }
  EXPECT_GT(finished, 35);
}

// A model that writes a blank whenever it may.
TEST(Property, BlanksEnd) {
  OutputRules rules;
  rules.answer = AnswerKind::json_object;
  TestVocabulary& vocabulary = TestVocabulary::demo();
  OutputState state = vocabulary.start(rules);
  ASSERT_TRUE(takes(state, vocabulary.tokenizer->encode("{", false), false));
  ASSERT_TRUE(state.accept(vocabulary.tokenizer->encode("{", false).front()));
  size_t blanks = 0;
  for (bool more = true; more && blanks < 1000;) {
    more = false;
    for (const char* blank : {"\n", " ", "\t"}) {
      if (!state.accept(vocabulary.by_bytes.find(blank)->second)) continue;
      ++blanks;
      more = true;
      break;
    }
  }
  EXPECT_GE(blanks, 32U);
  EXPECT_LE(blanks, 65U);
  EXPECT_TRUE(state.mask());
}

}  // namespace
}  // namespace cedar::engine::structured
