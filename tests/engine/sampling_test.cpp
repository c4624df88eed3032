#include "engine/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "engine/structured/token_mask.h"

namespace cedar::engine {
namespace {

const std::vector<TokenId> kNone;

TokenId draw(const std::vector<float>& logits, const SamplingParams& params,
             const std::vector<TokenId>& prompt = kNone, const std::vector<TokenId>& output = kNone,
             const std::vector<TokenId>& stops = kNone) {
  auto token = sample(logits, params, prompt, output, stops);
  EXPECT_TRUE(token.has_value()) << token.error().message();
  return token->token;
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

TEST(Sampling, GreedyTakesTheLowestIdOfATie) { EXPECT_EQ(draw({1, 3, 3, 2}, greedy()), 1); }

TEST(Sampling, TopKOfOneIsGreedyAndTiesGoToTheLowestId) {
  SamplingParams params;
  params.top_k = 1;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    params.seed = seed;
    EXPECT_EQ(draw({0, 2, 2, 1}, params), 1);
  }
}

TEST(Sampling, TinyTopPKeepsOneToken) {
  SamplingParams params;
  params.top_p = 1e-6F;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    params.seed = seed;
    EXPECT_EQ(draw({0.5F, 0.6F, 0.4F}, params), 1);
  }
}

TEST(Sampling, TopPKeepsTheTokenThatCrossesTheMass) {
  // p = .5, .3, .2: 0.6 needs the first two.
  const std::vector<float> logits{std::log(.5F), std::log(.3F), std::log(.2F)};
  SamplingParams params;
  params.top_p = 0.6F;
  std::map<TokenId, int> counts;
  for (params.seed = 0; params.seed < 400; ++params.seed) ++counts[draw(logits, params)];
  EXPECT_GT(counts[0], 0);
  EXPECT_GT(counts[1], 0);
  EXPECT_EQ(counts[2], 0);
}

TEST(Sampling, MinPOfOneKeepsTheMaximumAndItsTies) {
  SamplingParams params;
  params.min_p = 1;
  std::map<TokenId, int> counts;
  for (params.seed = 0; params.seed < 200; ++params.seed) ++counts[draw({1, 5, 5, 4.9F}, params)];
  EXPECT_EQ(counts[0] + counts[3], 0);
  EXPECT_GT(counts[1], 0);
  EXPECT_GT(counts[2], 0);
}

TEST(Sampling, DrawsFollowTheSoftmax) {
  std::vector<float> logits;
  for (int i = 0; i < 10; ++i) logits.push_back(static_cast<float>(i) * 0.3F);
  double total = 0;
  for (float l : logits) total += std::exp(static_cast<double>(l));
  constexpr int kDraws = 100000;
  std::vector<int> counts(10, 0);
  SamplingParams params;
  for (params.seed = 0; params.seed < kDraws; ++params.seed) {
    ++counts[static_cast<size_t>(draw(logits, params))];
  }
  double chi_square = 0;
  for (size_t i = 0; i < 10; ++i) {
    const double expected = kDraws * std::exp(static_cast<double>(logits[i])) / total;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 27.9);  // 9 degrees of freedom, p = 0.001
}

TEST(Sampling, TheSameKeyGivesTheSameTokenAndPositionsDiffer) {
  const std::vector<float> logits(50, 0.0F);
  SamplingParams params;
  params.seed = 42;
  std::vector<TokenId> output;
  std::map<TokenId, int> seen;
  for (int i = 0; i < 30; ++i) {
    const TokenId token = draw(logits, params, {}, output);
    EXPECT_EQ(token, draw(logits, params, {}, output));
    output.push_back(token);
    ++seen[token];
  }
  EXPECT_GT(seen.size(), 10U);
  params.choice = 1;
  EXPECT_NE(draw(logits, params, {}, {}), output.front());
}

TEST(Sampling, RepetitionPenaltySeesThePromptPresenceDoesNot) {
  auto params = greedy();
  params.repetition_penalty = 2;
  EXPECT_EQ(draw({2, 1.5F}, params, {0}), 1);
  EXPECT_EQ(draw({-1, -1.5F}, params, {0}), 1);  // a negative logit is multiplied
  params = greedy();
  params.presence_penalty = 2;
  EXPECT_EQ(draw({2, 1.5F}, params, {0}), 0);
  EXPECT_EQ(draw({2, 1.5F}, params, {}, {0}), 1);
}

TEST(Sampling, FrequencyPenaltyCounts) {
  auto params = greedy();
  params.frequency_penalty = 0.4F;
  EXPECT_EQ(draw({2, 1.5F}, params, {}, {0}), 0);
  EXPECT_EQ(draw({2, 1.5F}, params, {}, {0, 0}), 1);
}

TEST(Sampling, MinTokensMasksTheStops) {
  auto params = greedy();
  params.min_tokens = 1;
  EXPECT_EQ(draw({1, 9, 2}, params, {}, {}, {1}), 2);
  EXPECT_EQ(draw({1, 9, 2}, params, {}, {0}, {1}), 1);
}

TEST(Sampling, AMaskComesFirstAndDoesNotShowInLogprobs) {
  structured::TokenMask mask(4);
  mask.allow(0);
  mask.allow(2);
  auto params = greedy();
  params.logprobs = 1;
  const std::vector<float> logits{1, 5, 2, 9};
  const auto token = sample(logits, params, {}, {}, {}, &mask);
  ASSERT_TRUE(token.has_value());
  EXPECT_EQ(token->token, 2);
  EXPECT_LT(*token->logprob, -6.0F);
  EXPECT_EQ(token->top[0].token, 3);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    for (const int32_t top_k : {0, 1, 3}) {
      SamplingParams random;
      random.seed = seed;
      random.top_k = top_k;
      random.repetition_penalty = 1.5F;
      const auto drawn = sample(logits, random, {}, std::vector<TokenId>{1, 2}, {}, &mask);
      ASSERT_TRUE(drawn.has_value());
      EXPECT_TRUE(mask.allows(drawn->token));
    }
  }
}

TEST(Sampling, MinTokensDoNotHoldUpAFinishedValue) {
  structured::TokenMask mask(3);
  mask.allow(1);
  auto params = greedy();
  params.min_tokens = 5;
  EXPECT_EQ(
      sample(std::vector<float>{9, 1, 9}, params, {}, {}, std::vector<TokenId>{1, 1}, &mask)->token,
      1);
  mask.allow(2);
  EXPECT_EQ(
      sample(std::vector<float>{9, 1, 0}, params, {}, {}, std::vector<TokenId>{1}, &mask)->token,
      2);
}

TEST(Sampling, LogprobsAreOfTheRawLogits) {
  auto params = greedy();
  params.logprobs = 2;
  params.logit_bias = {{0, 100.0F}};
  auto token = sample(std::vector<float>{0, 1, 2}, params, {}, {}, {});
  ASSERT_TRUE(token.has_value());
  EXPECT_EQ(token->token, 0);
  const double total = 1 + std::exp(1.0) + std::exp(2.0);
  EXPECT_NEAR(*token->logprob, -std::log(total), 1e-5);
  ASSERT_EQ(token->top.size(), 2U);
  EXPECT_EQ(token->top[0].token, 2);
  EXPECT_EQ(token->top[1].token, 1);
}

TEST(Sampling, NanFailsTheRequestAndInfinityDoesNot) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(sample(std::vector<float>{0, nan}, greedy(), {}, {}, {}).error().code, Errc::internal);
  EXPECT_EQ(draw({0, std::numeric_limits<float>::infinity()}, greedy()), 1);
}

TEST(Sampling, RangesAreCheckedByName) {
  const auto message = [](auto change) {
    SamplingParams params;
    change(params);
    const Status status = validate(params, 100);
    return status ? std::string("accepted") : status.error().context;
  };
  EXPECT_EQ(message([](auto&) {}), "accepted");
  EXPECT_NE(message([](auto& p) { p.temperature = 3; }).find("temperature"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.temperature = std::nanf(""); }).find("temperature"),
            std::string::npos);
  EXPECT_NE(message([](auto& p) { p.top_p = 0; }).find("top_p"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.top_k = -2; }).find("top_k"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.min_p = 2; }).find("min_p"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.presence_penalty = -3; }).find("presence"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.frequency_penalty = 3; }).find("frequency"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.repetition_penalty = 0; }).find("repetition"),
            std::string::npos);
  EXPECT_NE(message([](auto& p) { p.logprobs = 21; }).find("top_logprobs"), std::string::npos);
  EXPECT_NE(message([](auto& p) {
              p.logit_bias = {{100, 0}};
            }).find("logit_bias"),
            std::string::npos);
}

}  // namespace
}  // namespace cedar::engine
