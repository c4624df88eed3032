// Prefill and decode are one function (spec/ced.md 6): however a prompt is cut into chunks, batched or stepped,
// every row's logits have the same bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "engine/sequence_runner.h"
#include "tests/support/test_model.h"

namespace cedar {
namespace {

using engine::SequenceRunner;
using Tokens = std::vector<TokenId>;

std::unique_ptr<SequenceRunner> make_runner(engine::EngineOptions options = testing::test_options(),
                                            bool demo = false) {
  auto runner =
      SequenceRunner::create(demo ? testing::demo_model() : testing::mini_model(), options);
  EXPECT_TRUE(runner.has_value()) << runner.error().message();
  return std::move(*runner);
}

Tokens slice(const Tokens& tokens, size_t begin, size_t end) {
  return Tokens(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                tokens.begin() + static_cast<std::ptrdiff_t>(end));
}

Tokens random_tokens(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Tokens tokens{0};
  while (tokens.size() < count) tokens.push_back(static_cast<TokenId>(random() % 1200));
  return tokens;
}

/// Logits of the last row after `tokens` in chunks of the given sizes (the last size repeats).
std::vector<float> run_chunks(SequenceRunner& runner, const Tokens& tokens,
                              const std::vector<size_t>& sizes) {
  const auto slot = runner.open(static_cast<int64_t>(tokens.size()));
  EXPECT_TRUE(slot.has_value()) << slot.error().message();
  std::vector<float> logits;
  size_t at = 0;
  for (size_t i = 0; at < tokens.size(); ++i) {
    const size_t size = std::min(sizes[std::min(i, sizes.size() - 1)], tokens.size() - at);
    auto output = runner.run({{*slot, slice(tokens, at, at + size)}});
    EXPECT_TRUE(output.has_value()) << output.error().message();
    if (!output) break;
    logits = output->front().logits.back();
    at += size;
  }
  runner.close(*slot);
  return logits;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// B29: 48 (length, split) pairs, odd lengths above 63 among them.
TEST(Consistency, PrefillEqualsPrefillPlusDecodeSteps48Of48) {
  for (auto mode : {kernels::IndexScoreMode::bf16, kernels::IndexScoreMode::fp32}) {
    auto options = testing::test_options();
    options.numeric.index_score = mode;
    auto runner = make_runner(options);
    const auto golden = testing::read_json(testing::golden_path("consistency.json"));
    int equal = 0;
    int odd_above_63 = 0;
    for (const auto& item : golden.at("cases")) {
      const Tokens ids = item.at("ids").get<Tokens>();
      const auto steps = item.at("k").get<size_t>();
      const auto whole = run_chunks(*runner, ids, {ids.size()});
      const auto stepped = run_chunks(*runner, ids, {ids.size() - steps, 1});
      equal += same_bits(whole, stepped) ? 1 : 0;
      odd_above_63 += ids.size() > 63 && ids.size() % 2 == 1 ? 1 : 0;
    }
    EXPECT_EQ(equal, 48);
    EXPECT_EQ(golden.at("cases").size(), 48U);
    EXPECT_GT(odd_above_63, 0);
  }
}

// The released reference's defect must be visible, or the comparison above proves nothing.
TEST(Consistency, StaleIndexKeysBreakIt) {
  auto options = testing::test_options();
  options.numeric.compat_stale_index_key = true;
  auto runner = make_runner(options);
  const Tokens ids = random_tokens(151, 5);
  const auto whole = run_chunks(*runner, ids, {ids.size()});
  EXPECT_FALSE(same_bits(whole, run_chunks(*runner, ids, {ids.size() - 3, 1})));
}

TEST(Consistency, EveryChunkSizeOfAShortPrompt) {
  auto runner = make_runner();
  const Tokens ids = random_tokens(41, 7);
  const auto whole = run_chunks(*runner, ids, {ids.size()});
  for (size_t size = 1; size < ids.size(); ++size) {
    EXPECT_TRUE(same_bits(whole, run_chunks(*runner, ids, {size}))) << "chunks of " << size;
  }
}

// B30, B32: selections of a resumed prefill equal a cold one's for every split, window and ratio edges included.
TEST(Consistency, SplitsAroundWindowAndGroupEdges) {
  auto runner = make_runner();
  const Tokens ids = random_tokens(300, 11);
  const auto whole = run_chunks(*runner, ids, {ids.size()});
  for (size_t first : {1, 2, 3, 35, 36, 37, 71, 72, 73, 127, 128, 129, 255, 299}) {
    EXPECT_TRUE(same_bits(whole, run_chunks(*runner, ids, {first, ids.size()})))
        << "split at " << first;
  }
  for (size_t size : {2, 3, 35, 36, 37, 127, 128, 129}) {
    EXPECT_TRUE(same_bits(whole, run_chunks(*runner, ids, {size}))) << "chunks of " << size;
  }
}

class SelectionBelowChunk : public engine::ForwardObserver {
 public:
  explicit SelectionBelowChunk(int32_t first_row) : first_row_(first_row) {}
  void on_topk(LayerId, const int32_t* indices, int64_t k, int64_t rows) override {
    for (int64_t i = 0; i < rows * k; ++i) below += indices[i] >= 0 && indices[i] < first_row_;
  }
  int64_t below = 0;

 private:
  int32_t first_row_;
};

// B32: a later chunk selects rows of earlier chunks.
TEST(Consistency, LaterChunksSelectEarlierRows) {
  auto runner = make_runner();
  const Tokens ids = random_tokens(200, 3);
  const auto slot = runner->open(200);
  ASSERT_TRUE(slot.has_value());
  ASSERT_TRUE(runner->run({{*slot, slice(ids, 0, 150)}}).has_value());
  SelectionBelowChunk observer(75);  // first ratio-2 row of the second chunk
  ASSERT_TRUE(runner->run({{*slot, slice(ids, 150, 200)}}, &observer).has_value());
  EXPECT_GT(observer.below, 0);
  runner->close(*slot);
}

TEST(Consistency, NeighboursInABatchChangeNothing) {
  auto runner = make_runner();
  std::vector<Tokens> prompts;
  std::vector<std::vector<float>> alone;
  for (uint32_t i = 0; i < 5; ++i) {
    prompts.push_back(random_tokens(40 + 23 * i, 100 + i));
    alone.push_back(run_chunks(*runner, prompts.back(), {prompts.back().size()}));
  }
  std::mt19937 random(1);
  std::vector<SequenceSlot> slots;
  std::vector<size_t> done(prompts.size(), 0);
  std::vector<std::vector<float>> together(prompts.size());
  for (const Tokens& prompt : prompts) {
    slots.push_back(*runner->open(static_cast<int64_t>(prompt.size())));
  }
  for (bool left = true; left;) {
    std::vector<SequenceRunner::Chunk> chunks;
    std::vector<size_t> who;
    left = false;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const size_t rest = prompts[i].size() - done[i];
      if (rest == 0 || (random() % 4 == 0 && !chunks.empty())) {
        left = left || rest > 0;
        continue;
      }
      const size_t rows = std::min<size_t>(rest, 1 + random() % 40);
      chunks.push_back({slots[i], slice(prompts[i], done[i], done[i] + rows)});
      who.push_back(i);
      done[i] += rows;
      left = left || done[i] < prompts[i].size();
    }
    if (chunks.empty()) continue;
    auto outputs = runner->run(chunks);
    ASSERT_TRUE(outputs.has_value()) << outputs.error().message();
    for (size_t c = 0; c < who.size(); ++c) together[who[c]] = (*outputs)[c].logits.back();
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_TRUE(same_bits(alone[i], together[i])) << "prompt " << i;
    runner->close(slots[i]);
  }
}

TEST(Consistency, ThreadsChangeNothing) {
  const Tokens ids = random_tokens(130, 23);
  auto one = make_runner();
  auto options = testing::test_options();
  options.threads = 3;
  auto three = make_runner(options);
  EXPECT_TRUE(same_bits(run_chunks(*one, ids, {ids.size()}), run_chunks(*three, ids, {50})));
}

TEST(Consistency, DemoModelChunkedAndStepped) {
  auto runner = make_runner(testing::test_options(), true);
  const auto prompts = testing::read_json(testing::golden_path("demo/prompts.json"));
  const Tokens ids = prompts.at(3).at("ids").get<Tokens>();
  const auto whole = run_chunks(*runner, ids, {ids.size()});
  EXPECT_TRUE(same_bits(whole, run_chunks(*runner, ids, {63, 65, 64})));
  EXPECT_TRUE(same_bits(whole, run_chunks(*runner, ids, {ids.size() - 5, 1})));
}

}  // namespace
}  // namespace cedar
