#pragma once
// Answers of an engine on random prompts, to be compared to the bit: with index keys spread by a service, and without.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/index_service.h"
#include "tests/support/test_model.h"

namespace cedar::test {

/// Token and bits of the log-probability, per request.
using Answers = std::map<uint64_t, std::vector<std::pair<TokenId, float>>>;

inline std::vector<TokenId> random_prompt(int64_t tokens, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> prompt{0};
  while (static_cast<int64_t>(prompt.size()) < tokens) {
    prompt.push_back(static_cast<TokenId>(3 + random() % 1000));
  }
  return prompt;
}

struct Work {
  std::vector<int64_t> lengths;
  int64_t chunk = 50;
  int64_t new_tokens = 45;
  engine::ReplayMode replay = engine::ReplayMode::bounded;
  kernels::IndexScoreMode mode = kernels::IndexScoreMode::bf16;
};

/// `each_step`: before every step of the engine.
inline Answers answers_of(const std::shared_ptr<const engine::LoadedModel>& model, const Work& work,
                          std::shared_ptr<engine::IndexService> service, int64_t min_tokens,
                          const std::function<void()>& each_step = {}) {
  engine::EngineOptions options = cedar::testing::test_options();
  options.numeric.index_score = work.mode;
  options.prefill_chunk_tokens = work.chunk;
  options.max_sequences = 4;
  options.threads = 2;
  options.replay = work.replay;
  options.index_service = std::move(service);
  options.index_service_min_tokens = min_tokens;
  auto made = engine::Engine::create(model, options);
  EXPECT_TRUE(made.has_value()) << made.error().message();
  Answers answers;
  for (size_t i = 0; i < work.lengths.size(); ++i) {
    engine::DecodeRequest request;
    request.id = RequestId(i + 1);
    request.prompt = random_prompt(work.lengths[i], static_cast<uint32_t>(i));
    request.max_new_tokens = work.new_tokens;
    request.sampling.temperature = 0;
    request.sampling.logprobs = 0;
    request.ignore_eos = true;
    const auto submitted =
        (*made)->submit(request, {}, [&answers](const engine::TokenEvent& event) {
          EXPECT_FALSE(event.error.has_value()) << event.error->message();
          answers[event.id.value].emplace_back(event.token.token, event.token.logprob.value());
        });
    EXPECT_TRUE(submitted.has_value());
  }
  while (!(*made)->idle()) {
    if (each_step) each_step();
    const Status status = (*made)->step();
    EXPECT_TRUE(status.has_value()) << status.error().message();
    if (!status) break;
  }
  return answers;
}

}  // namespace cedar::test
