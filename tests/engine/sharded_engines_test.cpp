// Engines whose index keys are spread give the answers of engines that have them alone: tokens, log-probabilities, blocks and
// hand-off states.

#include <gtest/gtest.h>

#include "tests/support/sharded_index.h"
#include "tests/support/spread_work.h"

namespace cedar::engine {
namespace {

using test::Answers;
using test::answers_of;
using test::random_prompt;
using test::ShardedIndex;
using test::Work;

void expect_free(const ShardedIndex& index, int holders) {
  for (int h = 0; h < holders; ++h) {
    EXPECT_EQ(index.store(h).stats().parts, 0) << h;
    EXPECT_EQ(index.store(h).stats().bytes_used, 0) << h;
  }
}

TEST(ShardedEngines, AnswerAsWithoutHolders) {
  // The mini model chooses 30 of up to 400 rows and keeps 7 candidate blocks of 6.
  for (const kernels::IndexScoreMode mode :
       {kernels::IndexScoreMode::bf16, kernels::IndexScoreMode::fp32}) {
    Work work;
    work.lengths = {390, 120, 71};
    work.mode = mode;
    const Answers want = answers_of(testing::mini_model(), work, nullptr, 0);
    ASSERT_EQ(want.at(1).size(), 45U);
    for (const int holders : {1, 2, 5}) {
      const auto index =
          std::make_shared<ShardedIndex>(holders, [=](int32_t block) { return block % holders; });
      EXPECT_EQ(answers_of(testing::mini_model(), work, index, 1), want) << holders;
      EXPECT_GT(index->scans(), 100);
      expect_free(*index, holders);
    }
  }
}

TEST(ShardedEngines, ChunksReplayAndStripes) {
  Work work;
  work.lengths = {301, 215};
  work.new_tokens = 12;
  for (const ReplayMode replay : {ReplayMode::bounded, ReplayMode::exact}) {
    work.replay = replay;
    const Answers want = answers_of(testing::mini_model(), work, nullptr, 0);
    for (const int64_t chunk : {1000, 36, 17}) {
      work.chunk = chunk;
      const auto index =
          std::make_shared<ShardedIndex>(2, [](int32_t block) { return block / 4 % 2; });
      EXPECT_EQ(answers_of(testing::mini_model(), work, index, 1), want) << chunk;
      expect_free(*index, 2);
    }
  }
}

TEST(ShardedEngines, ShortSequencesStayWhereTheyAre) {
  Work work;
  work.lengths = {380, 60, 100};
  const Answers want = answers_of(testing::mini_model(), work, nullptr, 0);
  auto index = std::make_shared<ShardedIndex>(2, [](int32_t block) { return block % 2; });
  EXPECT_EQ(answers_of(testing::mini_model(), work, index, 200), want);
  // Of the one long sequence: its blocks of 36 tokens while they are read, and again while they are written.
  EXPECT_GE(index->appended(), 380 / 36 + (380 + 45) / 36 - 2);
  EXPECT_LE(index->appended(), 2 * ((380 + 45) / 36));
  index = std::make_shared<ShardedIndex>(2, [](int32_t block) { return block % 2; });
  EXPECT_EQ(answers_of(testing::mini_model(), work, index, 1000), want);
  EXPECT_EQ(index->appended(), 0);
}

TEST(ShardedEngines, WhoDoesNotAnswerIsNotMissed) {
  Work work;
  work.lengths = {350, 140};
  const Answers want = answers_of(testing::mini_model(), work, nullptr, 0);
  const auto index = std::make_shared<ShardedIndex>(3, [](int32_t block) { return block % 3; });
  index->answers = [](int holder, int64_t n) { return holder == 1 || n % 4 == 0; };
  EXPECT_EQ(answers_of(testing::mini_model(), work, index, 1), want);
  expect_free(*index, 3);
}

TEST(ShardedEngines, SomeBlocksAreNeverTaken) {
  Work work;
  work.lengths = {350};
  const Answers want = answers_of(testing::mini_model(), work, nullptr, 0);
  const auto index = std::make_shared<ShardedIndex>(2, [](int32_t block) { return block % 3 - 1; });
  EXPECT_EQ(answers_of(testing::mini_model(), work, index, 1), want);
  expect_free(*index, 2);
}

TEST(ShardedEngines, ACancelledSequenceIsClosed) {
  const auto index = std::make_shared<ShardedIndex>(1, [](int32_t) { return 0; });
  {
    EngineOptions options = testing::test_options();
    options.prefill_chunk_tokens = 100;
    options.index_service = index;
    options.index_service_min_tokens = 1;
    auto engine = Engine::create(testing::mini_model(), options);
    ASSERT_TRUE(engine.has_value());
    for (uint64_t id = 1; id <= 2; ++id) {
      DecodeRequest request;
      request.id = RequestId(id);
      request.prompt = random_prompt(300, 1);
      request.max_new_tokens = 50;
      request.ignore_eos = true;
      ASSERT_TRUE((*engine)->submit(request, {}, [](const TokenEvent&) {}).has_value());
    }
    for (int i = 0; i < 2; ++i) ASSERT_TRUE((*engine)->step().has_value());
    EXPECT_EQ(index->store(0).stats().parts, 1);
    (*engine)->cancel(RequestId(1));
    EXPECT_EQ(index->store(0).stats().parts, 0);
    for (int i = 0; i < 5; ++i) ASSERT_TRUE((*engine)->step().has_value());
    EXPECT_EQ(index->store(0).stats().parts, 1);
  }
  expect_free(*index, 1);
}

}  // namespace
}  // namespace cedar::engine
