// Real engines at the two ends of the data plane: what they write equals what one process writes. And hand-offs of the
// release's sizes, counted in bytes.

#include "engine/engine.h"
#include "model/kv_layout.h"
#include "tests/actors/handoff_fixture.h"
#include "tests/support/test_model.h"

namespace cedar::actors {
namespace {

using namespace std::chrono_literals;
using Tokens = std::vector<TokenId>;

class RemoteEnginesTest : public HandoffFixture {
 protected:
  static engine::EngineOptions options() {
    engine::EngineOptions options = testing::test_options();
    options.prefill_chunk_tokens = 40;
    options.kv_pool_blocks = 64;
    return options;
  }
  /// An encoder that has the encoder's weights only.
  Node& add_real_encoder(int64_t blocks = 64) {
    static const auto model = testing::load_for_test(testing::mini_path(), model::Role::encoder);
    Node& node = add_node();
    engine::EngineOptions own = options();
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
    node.script->blocks = options().kv_pool_blocks;
    const auto make = []() -> Result<std::unique_ptr<DecoderEngine>> {
      CEDAR_TRY(auto engine, engine::DecodeEngine::create(
                                 testing::mini_model(),
                                 engine::local_engram_source(testing::mini_model()), options()));
      return as_stage_engine(std::move(engine));
    };
    node.decoder = system_->spawn<DecoderStage, caf::detached>(
        DecoderStageSetup{make, node.plane, node.board, {}});
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
  static Tokens one_process(const GenerateRequest& request) {
    auto engine = engine::Engine::create(testing::mini_model(), options());
    EXPECT_TRUE(engine.has_value());
    Tokens tokens;
    EXPECT_TRUE(
        (*engine)
            ->submit(request.decode, {},
                     [&](const engine::TokenEvent& event) { tokens.push_back(event.token.token); })
            .has_value());
    while (!(*engine)->idle()) EXPECT_TRUE((*engine)->step().has_value());
    return tokens;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, RemoteEnginesTest, ::testing::ValuesIn(handoff_backends()),
                         [](const auto& backend) { return backend.param.name; });

// B07: prompts of whole blocks, and one more and one less. B22: odd prompts hand over an open group, even ones do not.
TEST_P(RemoteEnginesTest, WriteWhatOneProcessWrites) {
  Node& encoder = add_real_encoder();
  Node& decoder = add_real_decoder();
  std::vector<Sink> sinks;
  std::vector<GenerateRequest> requests;
  for (const size_t length : {1, 2, 35, 36, 37, 71, 72, 73, 100, 101, 102, 144}) {
    requests.push_back(prompt_of(length));
    sinks.push_back(submit(encoder, decoder, requests.back()));
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    SCOPED_TRACE(requests[i].decode.prompt.size());
    const auto end = sinks[i]->wait_end(30s);
    ASSERT_TRUE(end);
    ASSERT_FALSE(end->error) << end->error->message();
    EXPECT_EQ(sinks[i]->tokens(), one_process(requests[i]));
  }
  expect_level();
}

// B19: the encoder's pool is the smaller one. The prompt ends by its numbers and nothing is transferred.
TEST_P(RemoteEnginesTest, APromptThatOnlyTheDecoderCouldHoldIsRefused) {
  Node& encoder = add_real_encoder(2);
  Node& decoder = add_real_decoder();
  const Error error = error_of(submit(encoder, decoder, prompt_of(100)));
  EXPECT_EQ(error.code, Errc::context_too_long);
  EXPECT_EQ(decoder.transport().stats().pulls_started, 0u);
  expect_level();
}

/// Sizes of the release without its weights.
class ReleaseShapes : public HandoffFixture {
 protected:
  static const engine::LoadedModel& shapes() {
    static const engine::LoadedModel model = [] {
      engine::LoadedModel loaded;
      loaded.config = *model::load_model_config(testing::golden_path("release"));
      loaded.plan = *model::make_layer_plan(loaded.config);
      loaded.layout = model::make_kv_layout(loaded.config, loaded.plan);
      return loaded;
    }();
    return model;
  }
  static void release_shaped(test::EngineScript& script) {
    engine::EngineOptions options;
    options.max_context_tokens = 1 << 20;
    script.block_tokens = shapes().layout.block_tokens;
    script.block_bytes = shapes().layout.block_bytes;
    // The header is not part of the windows, which stand for everything here.
    script.state_bytes = state_bytes(1 << 20) - 64;
    script.blocks = 800;
    script.chunk_tokens = 4096;
  }
  static int64_t state_bytes(int64_t length) {
    engine::EngineOptions options;
    options.max_context_tokens = length;
    // Of an even prompt: its odd neighbour has an open group.
    return engine::max_handoff_bytes(shapes(), options) - 3 * 4096;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, ReleaseShapes, ::testing::ValuesIn(handoff_backends()),
                         [](const auto& backend) { return backend.param.name; });

TEST_P(ReleaseShapes, AHandOffOf100kTokensIs890BytesATokenAndTheFixedState) {
  // spec: windows of 20 layers, 128 boundary rows of 4 x 5120 bf16 and 4 f32, the header.
  EXPECT_EQ(state_bytes(1 << 20), 20 * 128 * 528 + 128 * 40'976 + 64);
  Node& encoder = add_encoder(release_shaped);
  Node& decoder = add_decoder(release_shaped);
  const int64_t blocks = 782;
  const auto asked = request(static_cast<size_t>(blocks * 128), 4);
  const auto sink = submit(encoder, decoder, asked);
  const auto end = sink->wait_end(60s);
  ASSERT_TRUE(end);
  ASSERT_FALSE(end->error) << end->error->message();
  EXPECT_EQ(sink->tokens().size(), 4u);
  EXPECT_EQ(decoder.script->imports, blocks);
  expect_level();
  const auto pulled = static_cast<int64_t>(decoder.transport().stats().bytes_pulled);
  const int64_t state = state_bytes(1 << 20);
  EXPECT_EQ(pulled, blocks * 113'920 + state);
  EXPECT_EQ((pulled - state) / (blocks * 128), 890);
  EXPECT_EQ((pulled - state) % (blocks * 128), 0);
  if (!GetParam().native_get) {
    EXPECT_EQ(static_cast<int64_t>(encoder.transport().stats().bytes_served), pulled);
  }
}

}  // namespace
}  // namespace cedar::actors
