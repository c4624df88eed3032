// Both halves together: what they hand over, and that they give back what they take.

#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "engine/sequence_runner.h"
#include "tests/support/test_model.h"

namespace cedar::engine {
namespace {

using Tokens = std::vector<TokenId>;

struct Answer {
  Tokens ids;
  std::vector<float> logprobs;
  FinishReason finish = FinishReason::none;
  std::string error;
};

DecodeRequest request_of(uint64_t id, Tokens prompt, int64_t max_new) {
  DecodeRequest request;
  request.id = RequestId(id);
  request.prompt = std::move(prompt);
  request.max_new_tokens = max_new;
  request.sampling.temperature = 0;
  request.sampling.logprobs = 0;
  request.ignore_eos = true;
  return request;
}

Tokens random_prompt(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Tokens tokens{0};
  while (tokens.size() < count) tokens.push_back(static_cast<TokenId>(random() % 1200));
  return tokens;
}

std::map<uint64_t, Answer> run_all(Engine& engine, const std::vector<DecodeRequest>& requests) {
  std::map<uint64_t, Answer> answers;
  for (const DecodeRequest& request : requests) {
    auto status = engine.submit(request, {}, [&answers](const TokenEvent& event) {
      Answer& answer = answers[event.id.value];
      answer.finish = event.finish;
      if (event.error) {
        answer.error = event.error->message();
        return;
      }
      EXPECT_EQ(event.index, static_cast<int64_t>(answer.ids.size()));
      answer.ids.push_back(event.token.token);
      if (event.token.logprob) answer.logprobs.push_back(*event.token.logprob);
    });
    EXPECT_TRUE(status.has_value());
  }
  for (int i = 0; i < 5000 && !engine.idle(); ++i) {
    const Status status = engine.step();
    EXPECT_TRUE(status.has_value()) << status.error().message();
    if (!status) break;
  }
  EXPECT_TRUE(engine.idle());
  return answers;
}

std::unique_ptr<Engine> make_engine(EngineOptions options) {
  auto engine = Engine::create(testing::mini_model(), options);
  EXPECT_TRUE(engine.has_value()) << engine.error().message();
  return std::move(*engine);
}

EngineOptions exact_options() {
  EngineOptions options = testing::test_options();
  options.replay = ReplayMode::exact;
  return options;
}

/// Greedy answer of the runner that takes every token through every layer.
Answer full_prefill_answer(const Tokens& prompt, int64_t count) {
  auto runner = SequenceRunner::create(testing::mini_model(), testing::test_options());
  const auto slot = (*runner)->open(static_cast<int64_t>(prompt.size()) + count);
  Answer answer;
  Tokens next = prompt;
  for (int64_t i = 0; i < count; ++i) {
    auto output = (*runner)->run({{*slot, next}});
    EXPECT_TRUE(output.has_value()) << output.error().message();
    const auto& logits = output->front().logits.back();
    SamplingParams params;
    params.temperature = 0;
    params.logprobs = 0;
    auto token = sample(logits, params, {}, {}, {});
    answer.ids.push_back(token->token);
    answer.logprobs.push_back(*token->logprob);
    next = {token->token};
  }
  return answer;
}

TEST(Engine, ExactReplayEqualsAFullPrefillBitForBit) {
  auto engine = make_engine(exact_options());
  // Whole blocks of 36 and one token around them, odd and even, shorter than a window, longer than the replay.
  for (size_t length : {1, 2, 17, 35, 36, 37, 71, 72, 73, 175, 176, 177, 290}) {
    const Tokens prompt = random_prompt(length, static_cast<uint32_t>(length));
    const Answer expected = full_prefill_answer(prompt, 6);
    auto answers = run_all(*engine, {request_of(1, prompt, 6)});
    EXPECT_EQ(answers[1].ids, expected.ids) << length;
    ASSERT_EQ(answers[1].logprobs.size(), expected.logprobs.size());
    EXPECT_EQ(std::memcmp(answers[1].logprobs.data(), expected.logprobs.data(),
                          expected.logprobs.size() * sizeof(float)),
              0)
        << length;
  }
}

TEST(Engine, ChunkSizeAndNeighboursChangeNoToken) {
  std::vector<DecodeRequest> requests;
  for (uint64_t i = 0; i < 6; ++i) {
    requests.push_back(request_of(i, random_prompt(20 + 37 * i, static_cast<uint32_t>(i)), 8));
  }
  std::map<uint64_t, Answer> alone;
  for (const DecodeRequest& request : requests) {
    auto engine = make_engine(testing::test_options());
    alone.merge(run_all(*engine, {request}));
  }
  for (int64_t chunk : {7, 64, 512}) {
    EngineOptions options = testing::test_options();
    options.prefill_chunk_tokens = chunk;
    options.max_sequences = 4;  // fewer than the requests: some wait
    auto engine = make_engine(options);
    auto together = run_all(*engine, requests);
    for (uint64_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(together[i].ids, alone[i].ids) << "chunk " << chunk << " request " << i;
      EXPECT_EQ(together[i].logprobs, alone[i].logprobs) << "chunk " << chunk << " request " << i;
    }
  }
}

TEST(Engine, StopsAtAStopIdAndAtTheLimit) {
  const Tokens prompt = random_prompt(50, 9);
  auto engine = make_engine(testing::test_options());
  const Answer free_run = run_all(*engine, {request_of(1, prompt, 5)})[1];
  EXPECT_EQ(free_run.finish, FinishReason::length);
  DecodeRequest request = request_of(2, prompt, 5);
  request.stop_ids = {free_run.ids[2]};
  const Answer stopped = run_all(*engine, {request})[2];
  EXPECT_EQ(stopped.finish, FinishReason::stop);
  EXPECT_EQ(stopped.ids.back(), free_run.ids[2]);
  EXPECT_LE(stopped.ids.size(), 3U);
}

TEST(Engine, ARequestThatCannotFitIsRefusedWithNeedAndCapacity) {
  EngineOptions options = testing::test_options();
  options.kv_pool_blocks = 4;
  auto engine = make_engine(options);
  auto answers = run_all(*engine, {request_of(1, random_prompt(140, 1), 10),    // 5 blocks of 36
                                   request_of(2, random_prompt(1000, 1), 100),  // context 1,024
                                   request_of(3, random_prompt(20, 1), int64_t{1} << 62),
                                   request_of(4, {0, 5, 99999}, 1), request_of(5, {}, 1),
                                   request_of(6, random_prompt(30, 2), 3)});
  EXPECT_EQ(answers[1].error, "context_too_long: 5 KV blocks needed, the pool holds 4");
  EXPECT_EQ(answers[2].error, "context_too_long: 1100 tokens needed, the context holds 1024");
  EXPECT_NE(answers[3].error.find("context_too_long: 20 prompt tokens + 4611686018427387904"),
            std::string::npos);
  EXPECT_NE(answers[4].error.find("prompt[2]: token id 99999"), std::string::npos);
  EXPECT_NE(answers[5].error.find("prompt: must not be empty"), std::string::npos);
  EXPECT_EQ(answers[6].ids.size(), 3U);
}

TEST(PrefillEngine, CancelAtAnyChunkGivesEverythingBack) {
  EngineOptions options = testing::test_options();
  options.prefill_chunk_tokens = 16;
  auto model = testing::mini_model();
  auto engine = PrefillEngine::create(model, local_engram_source(model), options);
  ASSERT_TRUE(engine.has_value());
  const PrefillLoad before = (*engine)->load();
  for (int chunks = 0; chunks < 4; ++chunks) {
    ASSERT_TRUE((*engine)->submit({RequestId(7), random_prompt(100, 3), {}}).has_value());
    EXPECT_LT((*engine)->load().free_blocks, before.free_blocks);
    for (int i = 0; i < chunks; ++i) ASSERT_TRUE((*engine)->step().has_value());
    (*engine)->release(RequestId(7));
    EXPECT_EQ((*engine)->load().free_blocks, before.free_blocks);
    EXPECT_EQ((*engine)->load().requests, 0);
  }
}

TEST(PrefillEngine, ShortPromptsGoFirstAndLongOnesAge) {
  EngineOptions options = testing::test_options();
  options.prefill_chunk_tokens = 10;
  auto model = testing::mini_model();
  auto engine = PrefillEngine::create(model, local_engram_source(model), options);
  ASSERT_TRUE(engine.has_value());
  ASSERT_TRUE((*engine)->submit({RequestId(1), random_prompt(300, 3), {}}).has_value());
  int64_t long_rows = 0;
  uint64_t next = 2;
  for (int step = 0; step < 80; ++step) {
    if (step % 2 == 0) {
      ASSERT_TRUE((*engine)->submit({RequestId(next++), random_prompt(20, 1), {}}).has_value());
    }
    const auto events = (*engine)->step();
    ASSERT_TRUE(events.has_value());
    for (const PrefillEvent& event : *events) {
      if (event.id == RequestId(1)) long_rows += event.rows;
      if (event.finished) (*engine)->release(event.id);
    }
    if (step == 1) {
      EXPECT_EQ(long_rows, 0);  // the short one took the first two chunks
    }
  }
  EXPECT_GT(long_rows, 0);
}

TEST(DecodeEngine, RefusesBlocksAndHandoffsThatDoNotFit) {
  auto model = testing::mini_model();
  auto engine = DecodeEngine::create(model, local_engram_source(model), testing::test_options());
  ASSERT_TRUE(engine.has_value());
  const DecodeLoad before = (*engine)->load();
  ASSERT_TRUE((*engine)->reserve(request_of(1, random_prompt(40, 1), 4)).has_value());
  EXPECT_FALSE((*engine)->reserve(request_of(1, random_prompt(40, 1), 4)).has_value());
  std::vector<std::byte> bytes(static_cast<size_t>(model->layout.block_bytes));
  EXPECT_EQ((*engine)->import_block(RequestId(9), 0, bytes).error().code, Errc::not_found);
  EXPECT_FALSE((*engine)->import_block(RequestId(1), 2, bytes).has_value());
  EXPECT_FALSE((*engine)->import_block(RequestId(1), -1, bytes).has_value());
  EXPECT_FALSE((*engine)->import_block(RequestId(1), 0, std::span(bytes).first(10)).has_value());
  ASSERT_TRUE((*engine)->import_block(RequestId(1), 0, bytes).has_value());
  Handoff handoff;
  handoff.length = 40;
  EXPECT_EQ((*engine)->start(RequestId(1), std::move(handoff)).error().context,
            "block 1 has not been imported");
  (*engine)->cancel(RequestId(1));
  EXPECT_EQ((*engine)->load().free_blocks, before.free_blocks);
  EXPECT_EQ((*engine)->load().free_slots, before.free_slots);
}

TEST(DecodeEngine, CancelBetweenStepsGivesEverythingBackAndLeavesOthersAlone) {
  auto engine = make_engine(testing::test_options());
  const Tokens kept = random_prompt(60, 5);
  const Answer expected = run_all(*engine, {request_of(1, kept, 12)})[1];
  std::map<uint64_t, Answer> answers;
  const auto sink = [&](const TokenEvent& event) {
    answers[event.id.value].ids.push_back(event.token.token);
  };
  ASSERT_TRUE(engine->submit(request_of(2, kept, 12), {}, sink).has_value());
  ASSERT_TRUE(engine->submit(request_of(3, random_prompt(80, 6), 200), {}, sink).has_value());
  for (int i = 0; i < 400 && !engine->idle(); ++i) {
    ASSERT_TRUE(engine->step().has_value());
    if (answers[3].ids.size() == 4) engine->cancel(RequestId(3));
  }
  EXPECT_TRUE(engine->idle());
  EXPECT_EQ(answers[2].ids, expected.ids);
  EXPECT_EQ(answers[3].ids.size(), 4U);
}

}  // namespace
}  // namespace cedar::engine
