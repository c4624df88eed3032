// The encoder role alone: the same blocks and the same state as with all weights, from fewer bytes.

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "engine/decode_engine.h"
#include "engine/prefill_engine.h"
#include "tests/support/test_model.h"

namespace cedar::engine {
namespace {

struct Read {
  std::vector<std::vector<std::byte>> blocks;
  std::vector<std::byte> state;
  friend bool operator==(const Read&, const Read&) = default;
};

Read read_prompt(const std::shared_ptr<const LoadedModel>& model, ReplayMode mode,
                 const std::vector<TokenId>& prompt) {
  EngineOptions options = testing::test_options();
  options.replay = mode;
  options.prefill_chunk_tokens = 50;
  auto engine = PrefillEngine::create(model, local_engram_source(model), options);
  EXPECT_TRUE(engine.has_value()) << engine.error().message();
  const RequestId id{1};
  EXPECT_TRUE((*engine)->submit({id, prompt, {}}).has_value());
  Read read;
  while (!(*engine)->idle()) {
    const auto events = (*engine)->step();
    EXPECT_TRUE(events.has_value()) << events.error().message();
    for (const PrefillEvent& event : *events) {
      for (auto i = static_cast<int64_t>(read.blocks.size()); i < event.blocks_ready; ++i) {
        const auto bytes = (*engine)->block(id, i);
        read.blocks.emplace_back(bytes.begin(), bytes.end());
      }
    }
  }
  const auto state = (*engine)->take_handoff(id);
  EXPECT_TRUE(state.has_value());
  read.state.resize(static_cast<size_t>(serialised_bytes(*state)));
  serialise(*state, read.state);
  return read;
}

class EncoderRole : public ::testing::Test {
 protected:
  static const std::shared_ptr<const LoadedModel>& encoder() {
    static const auto model = testing::load_for_test(testing::mini_path(), model::Role::encoder);
    return model;
  }
};

TEST_F(EncoderRole, ComputesTheSameBits) {
  std::mt19937 random(3);
  const int64_t window = encoder()->config.sliding_window;
  for (const int64_t length : {int64_t{1}, window, 2 * window + 1, 3 * window - 1}) {
    std::vector<TokenId> prompt;
    for (int64_t i = 0; i < length; ++i) prompt.push_back(static_cast<TokenId>(random() % 1200));
    for (const ReplayMode mode : {ReplayMode::bounded, ReplayMode::exact}) {
      const Read alone = read_prompt(encoder(), mode, prompt);
      const Read all = read_prompt(testing::mini_model(), mode, prompt);
      ASSERT_FALSE(alone.blocks.empty());
      EXPECT_TRUE(alone == all) << length;
    }
  }
}

TEST_F(EncoderRole, HoldsNothingOfTheDecoderHalf) {
  const LoadedModel& model = *encoder();
  EXPECT_EQ(model.role, model::Role::encoder);
  EXPECT_FALSE(model.head.has_value());
  EXPECT_FALSE(model.drafter.has_value());
  EXPECT_EQ(model.final_norm.buffer.bytes(), 0);
  const auto boundary = static_cast<size_t>(model.plan.boundary);
  ASSERT_EQ(model.layers.size(), model.plan.layers.size());
  for (size_t layer = 0; layer < model.layers.size(); ++layer) {
    SCOPED_TRACE(layer);
    if (layer < boundary) {
      ASSERT_NE(model.layers[layer], nullptr);
      EXPECT_FALSE(model.layers[layer]->boundary_only);
    } else if (layer == boundary) {
      // What projects the decoder's global KV, and nothing else.
      ASSERT_NE(model.layers[layer], nullptr);
      const LayerWeights& weights = *model.layers[layer];
      EXPECT_TRUE(weights.boundary_only);
      EXPECT_TRUE(weights.compressor.has_value());
      EXPECT_TRUE(weights.index_key.has_value());
      EXPECT_FALSE(weights.index_query.has_value());
      EXPECT_TRUE(weights.experts.empty());
      EXPECT_EQ(weights.wq_a.bytes(), 0);
      EXPECT_EQ(weights.sink.buffer.bytes(), 0);
      EXPECT_EQ(weights.ffn_norm.buffer.bytes(), 0);
    } else {
      EXPECT_EQ(model.layers[layer], nullptr);
    }
  }
  // Half of the layers and no head: well below two thirds of the whole.
  EXPECT_LT(model.checkpoint.bytes * 3, testing::mini_model()->checkpoint.bytes * 2);
}

TEST_F(EncoderRole, CannotDecode) {
  const auto engine =
      DecodeEngine::create(encoder(), local_engram_source(encoder()), testing::test_options());
  ASSERT_FALSE(engine.has_value());
  EXPECT_EQ(engine.error().code, Errc::invalid_argument);
}

}  // namespace
}  // namespace cedar::engine
