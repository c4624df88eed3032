#pragma once
// Engines of the mini model at the two ends of the data plane.

#include <random>

#include "engine/engine.h"
#include "tests/actors/handoff_fixture.h"
#include "tests/support/test_model.h"

namespace cedar::actors {

class RemoteEnginesTest : public HandoffFixture {
 protected:
  RemoteEnginesTest() {
    options_.prefill_chunk_tokens = 40;
    options_.kv_pool_blocks = 64;
  }
  /// An encoder that has the encoder's weights only.
  Node& add_real_encoder(int64_t blocks = 64) {
    static const auto model = testing::load_for_test(testing::mini_path(), model::Role::encoder);
    Node& node = add_node();
    engine::EngineOptions own = options_;
    own.block_memory = node.memory;
    own.kv_pool_blocks = blocks;
    node.script->blocks = blocks;
    const auto make = [own]() -> Result<std::unique_ptr<EncoderEngine>> {
      CEDAR_TRY(auto engine,
                engine::PrefillEngine::create(model, engine::local_engram_source(model), own));
      return as_stage_engine(std::move(engine));
    };
    node.encoder = system_->spawn<EncoderStage, caf::detached>(
        EncoderStageSetup{make, node.memory, node.plane, node.board});
    EXPECT_TRUE(test::eventually([&] { return node.board->encoder_free_blocks > 0; }));
    return node;
  }
  Node& add_real_decoder() {
    Node& node = add_node();
    node.script->blocks = options_.kv_pool_blocks;
    const auto make = [own = options_]() -> Result<std::unique_ptr<DecoderEngine>> {
      CEDAR_TRY(auto engine, engine::DecodeEngine::create(
                                 testing::mini_model(),
                                 engine::local_engram_source(testing::mini_model()), own));
      return as_stage_engine(std::move(engine));
    };
    DecoderStageSetup setup;
    setup.make_engine = make;
    setup.plane = node.plane;
    setup.board = node.board;
    node.decoder = system_->spawn<DecoderStage, caf::detached>(setup);
    EXPECT_TRUE(test::eventually([&] { return node.board->decoder_free_blocks > 0; }));
    return node;
  }
  static GenerateRequest prompt_of(size_t length) {
    GenerateRequest request;
    std::mt19937 random(static_cast<uint32_t>(length));
    while (request.decode.prompt.size() < length) {
      request.decode.prompt.push_back(static_cast<TokenId>(random() % 1200));
    }
    request.decode.max_new_tokens = 6;
    request.decode.sampling.temperature = 0;
    request.decode.ignore_eos = true;
    return request;
  }
  std::vector<TokenId> one_process(const GenerateRequest& request) {
    auto engine = engine::Engine::create(testing::mini_model(), options_);
    EXPECT_TRUE(engine.has_value());
    std::vector<TokenId> tokens;
    EXPECT_TRUE(
        (*engine)
            ->submit(request.decode, {},
                     [&](const engine::TokenEvent& event) { tokens.push_back(event.token.token); })
            .has_value());
    while (!(*engine)->idle()) EXPECT_TRUE((*engine)->step().has_value());
    return tokens;
  }

  engine::EngineOptions options_ = testing::test_options();
};

}  // namespace cedar::actors
