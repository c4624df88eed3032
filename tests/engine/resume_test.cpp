// An answer that another engine began: resumed at any token, it goes on as if nothing had happened.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "engine/engine.h"
#include "engine/structured/constraints.h"
#include "engine/structured/output_rules.h"
#include "tests/support/test_model.h"

namespace cedar::engine {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<TokenId>;

struct Answer {
  Tokens ids;
  std::vector<int64_t> indices;
  std::vector<float> logprobs;
  FinishReason finish = FinishReason::none;
  std::string error;
};

class Resume : public ::testing::Test {
 protected:
  static EngineOptions exact() {
    EngineOptions options = testing::test_options();
    options.replay = ReplayMode::exact;
    return options;
  }
  void use(const std::shared_ptr<const LoadedModel>& model, const EngineOptions& options) {
    auto engine = Engine::create(model, options);
    ASSERT_TRUE(engine.has_value()) << engine.error().message();
    engine_ = std::move(*engine);
  }
  Answer run(DecodeRequest request) {
    Answer answer;
    request.id = RequestId(++last_id_);
    const Status status =
        engine_->submit(std::move(request), {}, [&answer](const TokenEvent& event) {
          answer.finish = event.finish;
          if (event.error) {
            answer.error = event.error->message();
            return;
          }
          answer.ids.push_back(event.token.token);
          answer.indices.push_back(event.index);
          if (event.token.logprob) answer.logprobs.push_back(*event.token.logprob);
        });
    EXPECT_TRUE(status.has_value());
    for (int i = 0; i < 5000 && !engine_->idle(); ++i) EXPECT_TRUE(engine_->step().has_value());
    return answer;
  }
  /// Every point of the answer, and the probabilities to the bit.
  void expect_same_from_every_point(const DecodeRequest& request) {
    const Answer whole = run(request);
    ASSERT_EQ(whole.error, "");
    ASSERT_GT(whole.ids.size(), 3u);
    for (size_t k = 1; k < whole.ids.size(); ++k) {
      SCOPED_TRACE(k);
      DecodeRequest rest = request;
      rest.emitted.assign(whole.ids.begin(), whole.ids.begin() + static_cast<std::ptrdiff_t>(k));
      const Answer resumed = run(rest);
      ASSERT_EQ(resumed.error, "");
      const auto from = static_cast<std::ptrdiff_t>(k);
      EXPECT_EQ(resumed.ids, Tokens(whole.ids.begin() + from, whole.ids.end()));
      EXPECT_EQ(resumed.indices,
                std::vector<int64_t>(whole.indices.begin() + from, whole.indices.end()));
      EXPECT_EQ(resumed.logprobs,
                std::vector<float>(whole.logprobs.begin() + from, whole.logprobs.end()));
      EXPECT_EQ(resumed.finish, whole.finish);
    }
  }

  static DecodeRequest request_of(size_t prompt, int64_t max_new) {
    DecodeRequest request;
    std::mt19937 random(static_cast<uint32_t>(prompt));
    request.prompt.push_back(0);
    while (request.prompt.size() < prompt) {
      request.prompt.push_back(static_cast<TokenId>(random() % 1200));
    }
    request.max_new_tokens = max_new;
    request.sampling.temperature = 0;
    request.sampling.logprobs = 0;
    request.ignore_eos = true;
    return request;
  }

  std::unique_ptr<Engine> engine_;
  uint64_t last_id_ = 0;
};

TEST_F(Resume, GreedyWithExactReplay) {
  use(testing::mini_model(), exact());
  const int64_t window = testing::mini_model()->config.sliding_window;
  // The prompt's end, odd and even, at the window's and the block's edges: some resumptions cross them.
  for (const int64_t prompt : {int64_t{1}, window - 5, 2 * window - 4}) {
    SCOPED_TRACE(prompt);
    expect_same_from_every_point(request_of(static_cast<size_t>(prompt), 12));
  }
}

TEST_F(Resume, SeededSamplingWithPenalties) {
  use(testing::mini_model(), exact());
  DecodeRequest request = request_of(37, 16);
  request.sampling.temperature = 1.0F;
  request.sampling.seed = 99;
  request.sampling.top_k = 50;
  request.sampling.top_p = 0.95F;
  request.sampling.presence_penalty = 0.7F;
  request.sampling.frequency_penalty = 0.5F;
  request.sampling.repetition_penalty = 1.3F;
  request.sampling.min_tokens = 6;
  request.ignore_eos = false;
  expect_same_from_every_point(request);
}

TEST_F(Resume, AJsonAnswer) {
  const auto tokenizer = *model::Tokenizer::load(testing::demo_path() + "/tokenizer.json");
  EngineOptions options = exact();
  const auto model = testing::demo_model();
  options.constraints = structured::Constraints::create(tokenizer, model->config.vocab_size,
                                                        model->config.eos_token_id);
  use(model, options);
  DecodeRequest request;
  request.prompt = tokenizer->encode("<｜User｜>Show ticket 4821<｜Assistant｜></think>");
  request.prompt.insert(request.prompt.begin(), 0);
  request.sampling.temperature = 1.2F;
  request.sampling.seed = 5;
  request.sampling.logprobs = 0;
  request.max_new_tokens = 100;
  structured::OutputRules rules;
  rules.answer = structured::AnswerKind::json_schema;
  rules.schema =
      R"({"type":"object","properties":{"size":{"type":"integer","minimum":1,"maximum":99},
    "tag":{"enum":["red","green"]}},"required":["size","tag"],"additionalProperties":false})";
  request.constraint = structured::to_text(rules);
  expect_same_from_every_point(request);
  // What the constraint could not have written is no beginning of its answer.
  request.emitted = tokenizer->encode("no JSON");
  EXPECT_THAT(run(request).error, HasSubstr("emitted: token 0 breaks the constraint"));
}

TEST_F(Resume, WhatCannotBeABeginningIsRefused) {
  use(testing::mini_model(), exact());
  DecodeRequest request = request_of(5, 3);
  request.emitted = {7, 8, 9};
  EXPECT_THAT(run(request).error, HasSubstr("3 tokens of at most 3 leave nothing to write"));
  request.emitted = {7, -1};
  EXPECT_THAT(run(request).error, HasSubstr("-1"));
}

}  // namespace
}  // namespace cedar::engine
