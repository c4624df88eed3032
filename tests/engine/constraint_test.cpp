// Constrained sequences in the engine: admission, sampling beside free neighbours, and how they end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "engine/engine.h"
#include "engine/structured/constraints.h"
#include "engine/structured/output_rules.h"
#include "tests/support/schema_validator.h"
#include "tests/support/test_model.h"

namespace cedar::engine {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

std::shared_ptr<const model::Tokenizer> tokenizer() {
  static const auto loaded = model::Tokenizer::load(testing::demo_path() + "/tokenizer.json");
  return *loaded;
}

EngineOptions options_with_constraints() {
  EngineOptions options = testing::test_options();
  options.constraints =
      structured::Constraints::create(tokenizer(), testing::demo_model()->config.vocab_size,
                                      testing::demo_model()->config.eos_token_id);
  return options;
}

struct Answer {
  std::vector<TokenId> ids;
  std::string text;
  FinishReason finish = FinishReason::none;
  std::string error;
};

std::map<uint64_t, Answer> run(const EngineOptions& options, std::vector<DecodeRequest> requests) {
  std::map<uint64_t, Answer> answers;
  auto engine = Engine::create(testing::demo_model(), options);
  EXPECT_TRUE(engine) << engine.error().message();
  for (DecodeRequest& request : requests) {
    const Status status =
        (*engine)->submit(std::move(request), {}, [&answers](const TokenEvent& event) {
          Answer& answer = answers[event.id.value];
          answer.finish = event.finish;
          if (event.error) {
            answer.error = event.error->message();
            return;
          }
          answer.ids.push_back(event.token.token);
          if (event.token.token != 1) answer.text += tokenizer()->token_bytes(event.token.token);
        });
    EXPECT_TRUE(status);
  }
  for (int i = 0; i < 2000 && !(*engine)->idle(); ++i) EXPECT_TRUE((*engine)->step());
  EXPECT_TRUE((*engine)->idle());
  return answers;
}

const char* kSchema = R"({"type":"object","properties":{"name":{"type":"string","maxLength":6},
  "size":{"type":"integer","minimum":1,"maximum":99},"tags":{"type":"array","maxItems":2,
  "items":{"enum":["red","green"]}}},"required":["name","size"],"additionalProperties":false})";

DecodeRequest request_of(uint64_t id, const std::string& schema, float temperature) {
  DecodeRequest request;
  request.id = RequestId(id);
  request.prompt = tokenizer()->encode("<｜User｜>Show ticket 4821<｜Assistant｜></think>");
  request.prompt.insert(request.prompt.begin(), 0);
  request.sampling.temperature = temperature;
  request.sampling.seed = id;
  request.max_new_tokens = 150;
  if (!schema.empty()) {
    structured::OutputRules rules;
    rules.answer = structured::AnswerKind::json_schema;
    rules.schema = schema;
    request.constraint = structured::to_text(rules);
  }
  return request;
}

TEST(Constraint, AnswersAreValidAndNeighboursDoNotChange) {
  const auto alone = run(options_with_constraints(), {request_of(1, "", 0)});
  std::vector<DecodeRequest> requests{request_of(1, "", 0), request_of(2, kSchema, 0)};
  for (uint64_t id = 3; id < 9; ++id) requests.push_back(request_of(id, kSchema, 1.5F));
  auto answers = run(options_with_constraints(), std::move(requests));
  EXPECT_EQ(answers[1].ids, alone.at(1).ids);
  const test::SchemaValidator validator(Json::parse(kSchema));
  for (uint64_t id = 2; id < 9; ++id) {
    const Answer& answer = answers[id];
    ASSERT_EQ(answer.finish, FinishReason::stop) << answer.text << answer.error;
    EXPECT_EQ(answer.ids.back(), 1);
    const Json value = Json::parse(answer.text, nullptr, false);
    ASSERT_FALSE(value.is_discarded()) << answer.text;
    EXPECT_TRUE(validator.accepts(value)) << answer.text;
  }
}

TEST(Constraint, TheTokenLimitEndsAnUnfinishedValue) {
  DecodeRequest request = request_of(1, kSchema, 0);
  request.max_new_tokens = 3;
  const auto answers = run(options_with_constraints(), {std::move(request)});
  EXPECT_EQ(answers.at(1).finish, FinishReason::length);
  EXPECT_EQ(answers.at(1).ids.size(), 3U);
}

TEST(Constraint, AFinishedValueEndsInSpiteOfMinTokensAndIgnoreEos) {
  DecodeRequest request = request_of(1, R"({"const":"x"})", 1);
  request.sampling.min_tokens = 100;
  request.ignore_eos = true;
  const auto answers = run(options_with_constraints(), {std::move(request)});
  EXPECT_EQ(answers.at(1).finish, FinishReason::stop);
  EXPECT_EQ(answers.at(1).text, "\"x\"");
}

TEST(Constraint, WhatCannotBeConstrainedFailsAtAdmission) {
  auto answers = run(testing::test_options(), {request_of(1, kSchema, 0)});
  EXPECT_EQ(answers[1].finish, FinishReason::failed);
  EXPECT_THAT(answers[1].error, HasSubstr("cannot constrain"));
  answers = run(options_with_constraints(), {request_of(2, R"({"not":{}})", 0)});
  EXPECT_THAT(answers[2].error, HasSubstr("not at # is not supported"));
  DecodeRequest garbage = request_of(3, "", 0);
  garbage.constraint = "garbage";
  answers = run(options_with_constraints(), {std::move(garbage)});
  EXPECT_EQ(answers[3].finish, FinishReason::failed);
}

}  // namespace
}  // namespace cedar::engine
