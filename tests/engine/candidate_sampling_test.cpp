// Tokens drawn from candidates are those drawn from whole rows: on the CPU, and on a GPU where there is one.

#include "engine/candidate_sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "engine/runtime.h"
#include "engine/structured/token_mask.h"
#include "engine/upload.h"

namespace cedar::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  SamplingParams params;
  std::vector<TokenId> prompt, output, stop_ids = {3};
  std::optional<structured::TokenMask> mask;
};

SamplingParams random_params(std::mt19937& random) {
  const auto one_in = [&](uint32_t n) { return random() % n == 0; };
  SamplingParams p;
  p.temperature = one_in(4) ? 0.0F : one_in(3) ? 0.3F : 1.0F;
  if (one_in(3)) p.top_p = one_in(2) ? 0.9F : 0.4F;
  if (one_in(3)) p.top_k = 1 + static_cast<int32_t>(random() % 60);
  if (one_in(4)) p.min_p = 0.05F;
  if (one_in(3)) p.repetition_penalty = 1.3F;
  if (one_in(3)) p.frequency_penalty = 0.7F;
  if (one_in(3)) p.presence_penalty = -0.4F;
  if (one_in(3)) p.logprobs = static_cast<int32_t>(random() % 21);
  if (one_in(4)) p.logit_bias = {{7, 5.0F}, {2, -100.0F}};
  if (one_in(9)) p.logit_bias.emplace_back(7, 1.5F);
  if (one_in(4)) p.min_tokens = 1000;
  p.seed = random();
  p.choice = random() % 3;
  return p;
}

class OnDevice : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (GetParam() == DeviceKind::cuda && cuda_device_count() == 0) {
      GTEST_SKIP() << "this machine lacks a CUDA device";
    }
    EngineOptions options;
    options.device = Device{GetParam(), 0};
    options.threads = 2;
    runtime_ = std::make_unique<Runtime>(options);
  }

  /// Compares all rows; returns how many were looked at whole.
  int64_t compare(const std::vector<float>& logits, int64_t vocab, const std::vector<Case>& cases) {
    kernels::KernelContext& ctx = runtime_->context();
    runtime_->begin_step();
    std::vector<SamplingJob> jobs;
    for (const Case& c : cases) {
      jobs.push_back({&c.params, c.prompt, c.output, c.stop_ids, c.mask ? &*c.mask : nullptr});
    }
    const auto found = sample_candidates(ctx, upload(ctx, logits), vocab, jobs);
    EXPECT_TRUE(found.has_value()) << (found ? "" : found.error().message());
    if (!found) return -1;
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      const auto expected =
          sample({logits.data() + static_cast<int64_t>(i) * vocab, static_cast<size_t>(vocab)},
                 c.params, c.prompt, c.output, c.stop_ids, jobs[i].allowed);
      const auto& got = found->tokens[i];
      EXPECT_EQ(got.has_value(), expected.has_value()) << i;
      if (!got || !expected) continue;
      EXPECT_EQ(got->token, expected->token)
          << i << " temperature " << c.params.temperature << " top_p " << c.params.top_p
          << " top_k " << c.params.top_k << " min_p " << c.params.min_p;
      EXPECT_EQ(got->logprob, expected->logprob) << i;
      EXPECT_EQ(got->top.size(), expected->top.size()) << i;
      for (size_t t = 0; t < std::min(got->top.size(), expected->top.size()); ++t) {
        EXPECT_EQ(got->top[t].token, expected->top[t].token) << i << " " << t;
        EXPECT_EQ(got->top[t].logprob, expected->top[t].logprob) << i << " " << t;
      }
    }
    return found->whole_rows;
  }

  std::unique_ptr<Runtime> runtime_;
};

std::vector<float> random_logits(int64_t count, std::mt19937& random, float deviation) {
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> logits(static_cast<size_t>(count));
  for (float& l : logits) l = normal(random);
  return logits;
}

std::vector<Case> random_cases(size_t count, int64_t vocab, std::mt19937& random) {
  std::vector<Case> cases(count);
  for (Case& c : cases) {
    c.params = random_params(random);
    const auto token = [&] {
      return static_cast<TokenId>(random() % static_cast<uint32_t>(vocab));
    };
    for (uint32_t i = random() % 40; i > 0; --i) c.prompt.push_back(token());
    for (uint32_t i = random() % 40; i > 0; --i) c.output.push_back(token());
    if (random() % 3 == 0) {
      c.mask.emplace(vocab);
      for (int64_t i = 0; i < 1 + vocab / 4; ++i) c.mask->allow(token());
      if (random() % 2 == 0) c.mask->allow(3);
    }
  }
  return cases;
}

TEST_P(OnDevice, RandomRowsOfEverySize) {
  std::mt19937 random(11);
  for (const int64_t vocab : {11, 64, 1000, 5000, 20000}) {
    const auto cases = random_cases(24, vocab, random);
    compare(random_logits(24 * vocab, random, 3), vocab, cases);
  }
}

TEST_P(OnDevice, PeakedRowsStayOnTheDevice) {
  std::mt19937 random(12);
  constexpr int64_t kVocab = 30000;
  auto cases = random_cases(32, kVocab, random);
  for (Case& c : cases) {
    c.params.logit_bias.clear();
    if (c.params.min_p > 0 || c.params.top_p < 1) c.params.top_p = 0.9F;
  }
  const int64_t whole = compare(random_logits(32 * kVocab, random, 5), kVocab, cases);
  EXPECT_LE(whole, 2);
}

TEST_P(OnDevice, TiesAndExtremes) {
  constexpr int64_t kVocab = 3000;
  std::mt19937 random(13);
  for (const int kind : {0, 1, 2, 3, 4}) {
    auto cases = random_cases(16, kVocab, random);
    auto logits = random_logits(16 * kVocab, random, 2);
    if (kind == 4) {
      // Logprobs are not numbers where every logit is minus infinity.
      for (Case& c : cases) c.params.logprobs = -1;
    }
    for (size_t i = 0; i < logits.size(); ++i) {
      if (kind == 0) logits[i] = std::round(logits[i]);
      if (kind == 1) logits[i] = 0;
      if (kind == 2 && i % 3 != 0) logits[i] = -kInfinity;
      if (kind == 3 && i % 977 == 5) logits[i] = kInfinity;
      if (kind == 4) logits[i] = -kInfinity;
    }
    compare(logits, kVocab, cases);
  }
}

TEST_P(OnDevice, NanIsAnErrorOfItsRowAlone) {
  std::mt19937 random(14);
  constexpr int64_t kVocab = 2500;
  std::vector<Case> cases(3);
  auto logits = random_logits(3 * kVocab, random, 2);
  logits[kVocab + 2400] = std::nanf("");
  EXPECT_EQ(compare(logits, kVocab, cases), 1);
}

std::string device_name(const ::testing::TestParamInfo<DeviceKind>& info) {
  return info.param == DeviceKind::cpu ? "cpu" : "cuda";
}
INSTANTIATE_TEST_SUITE_P(CandidateSampling, OnDevice,
                         ::testing::Values(DeviceKind::cpu, DeviceKind::cuda), device_name);

}  // namespace
}  // namespace cedar::engine
