// Real engines at the two ends of the data plane: what they write equals what one process writes. And hand-offs of the
// release's sizes, counted in bytes.

#include "model/kv_layout.h"
#include "tests/actors/real_engines_fixture.h"

namespace cedar::actors {
namespace {

using namespace std::chrono_literals;
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
