// B44: nothing in the pipeline has a size of its own below the configured maximum.

#include <gtest/gtest.h>

#include <random>

#include "engine/engine.h"
#include "tests/support/test_model.h"

namespace cedar::engine {
namespace {

std::vector<TokenId> answer(int64_t chunk, const std::vector<TokenId>& prompt, int64_t count) {
  EngineOptions options = testing::test_options();
  options.prefill_chunk_tokens = chunk;
  options.max_sequences = 1;
  options.threads = 2;
  auto engine = Engine::create(testing::demo_model(), options);
  EXPECT_TRUE(engine.has_value()) << engine.error().message();
  DecodeRequest request;
  request.id = RequestId(1);
  request.prompt = prompt;
  request.max_new_tokens = count;
  request.sampling.temperature = 0;
  request.ignore_eos = true;
  std::vector<TokenId> ids;
  const auto submitted = (*engine)->submit(request, {}, [&](const TokenEvent& event) {
    EXPECT_FALSE(event.error.has_value()) << event.error->message();
    ids.push_back(event.token.token);
  });
  EXPECT_TRUE(submitted.has_value());
  while (!(*engine)->idle()) {
    const Status status = (*engine)->step();
    EXPECT_TRUE(status.has_value()) << status.error().message();
    if (!status) break;
  }
  return ids;
}

TEST(LongContext, AChunkOf8192RowsUpToTheLastPositionOfTheContext) {
  const int64_t longest = testing::demo_model()->config.max_position_embeddings;
  ASSERT_EQ(longest, 16384);
  std::mt19937 random(4);
  std::vector<TokenId> prompt{0};
  while (static_cast<int64_t>(prompt.size()) < longest - 3) {
    prompt.push_back(static_cast<TokenId>(3 + random() % 4000));
  }
  const auto ids = answer(8192, prompt, 3);
  EXPECT_EQ(ids.size(), 3U);
  EXPECT_EQ(ids, answer(1000, prompt, 3));
}

TEST(LongContext, LimitsAreCheckedBeforeAnythingRuns) {
  EngineOptions options = testing::test_options();
  options.max_context_tokens = 16385;
  auto engine = Engine::create(testing::demo_model(), options);
  ASSERT_FALSE(engine.has_value());
  EXPECT_EQ(engine.error().context, "max_context_tokens: must be in [1, 16384], got 16385");
  options = testing::test_options();
  options.prefill_chunk_tokens = 0;
  engine = Engine::create(testing::demo_model(), options);
  ASSERT_FALSE(engine.has_value());
  EXPECT_EQ(engine.error().context, "prefill_chunk_tokens: must be at least 1, got 0");
}

}  // namespace
}  // namespace cedar::engine
