// Stages that die while a request needs them: who takes over, what is kept, and what the client sees of it.

#include "tests/actors/handoff_fixture.h"

namespace cedar::actors {
namespace {

using engine::FinishReason;
using test::eventually;
using testing::HasSubstr;
using namespace std::chrono_literals;

class FailoverTest : public HandoffFixture {
 protected:
  /// Waits until the encoder has read a part of the prompt and the decoder has some of its blocks.
  void wait_for_blocks(const Sink& sink, const Node& decoder, int64_t blocks) {
    ASSERT_TRUE(sink->wait_progress());
    ASSERT_TRUE(eventually([&] { return decoder.script->imports >= blocks; }));
  }
  /// Reads 32 tokens, eight blocks, and then waits.
  static void reads_a_part(test::EngineScript& script) { script.encoder_chunks = 4; }
};
INSTANTIATE_TEST_SUITE_P(Backends, FailoverTest, testing::ValuesIn(handoff_backends()),
                         [](const auto& backend) { return backend.param.name; });

TEST_P(FailoverTest, AnotherEncoderReadsOnAndBlocksAreKept) {
  Node& first = add_encoder(reads_a_part);
  Node& second = add_encoder();
  Node& decoder = add_decoder();
  may_replace_with_encoder(second);
  const auto asked = request(100, 120);
  const auto sink = submit(first, decoder, asked);
  wait_for_blocks(sink, decoder, 6);
  kill_encoder(first);
  first.encoder = EncoderStageActor{};  // not expected to be level
  expect_answer(sink, asked);
  EXPECT_EQ(decoder.script->imports, 25);  // each block once
  EXPECT_EQ(routes_->encoders_replaced, 1);
  const auto computed = sink->computed();
  EXPECT_TRUE(std::is_sorted(computed.begin(), computed.end()));
  expect_level();
}

TEST_P(FailoverTest, AnEncoderThatDiesBeforeItBeganIsReplaced) {
  Node& first = add_encoder();
  Node& second = add_encoder();
  Node& decoder = add_decoder();
  may_replace_with_encoder(second);
  kill_encoder(first);
  const auto sink = submit(first, decoder, request(20, 100));
  first.encoder = EncoderStageActor{};
  expect_answer(sink, request(20, 100));
  expect_level();
}

/// Everything is read and offered; the connection goes before the decoder has fetched it.
TEST_P(FailoverTest, AnEncoderThatIsCutOffBeforeTheBytesAreFetched) {
  if (GetParam().native_get) GTEST_SKIP() << "reads in place are too fast to be cut off";
  OfferPullerOptions pulls;
  pulls.connect_timeout = 1500ms;  // of the second try, once the silence was noticed
  Node& first = add_encoder();
  Node& second = add_encoder();
  Node& decoder = add_decoder({}, pulls);
  may_replace_with_encoder(second);
  expect_answer(submit(first, decoder, request(4, 4)), request(4, 4));
  first.faults().cut = true;
  const auto sink = submit(first, decoder, request(40, 100));
  expect_answer(sink, request(40, 100));
  EXPECT_EQ(routes_->encoders_replaced, 1);
}

TEST_P(FailoverTest, WithoutAnotherEncoderTheRequestFailsByName) {
  Node& encoder = add_encoder(reads_a_part);
  Node& decoder = add_decoder();
  const auto sink = submit(encoder, decoder, request(100, 4));
  wait_for_blocks(sink, decoder, 2);
  kill_encoder(encoder);
  encoder.encoder = EncoderStageActor{};
  const Error error = error_of(sink);
  EXPECT_EQ(error.code, Errc::unavailable);
  EXPECT_THAT(error.context, HasSubstr("the encoder stage went down"));
  expect_level();
}

TEST_P(FailoverTest, StagesAreReplacedAFewTimesOnly) {
  Node& decoder = add_decoder();
  std::vector<Node*> encoders;
  for (int i = 0; i < 5; ++i) {
    encoders.push_back(&add_encoder());
    kill_encoder(*encoders.back());
    if (i > 0) may_replace_with_encoder(*encoders.back());
  }
  const auto sink = submit(*encoders[0], decoder, request(10, 4));
  for (Node* node : encoders) node->encoder = EncoderStageActor{};
  EXPECT_EQ(error_of(sink).code, Errc::unavailable);
  EXPECT_EQ(routes_->encoders_replaced, 3);
  expect_level();
}

TEST_P(FailoverTest, AnotherDecoderWritesOnWithTheNextToken) {
  Node& encoder = add_encoder();
  Node& first = add_decoder([](test::EngineScript& s) { s.answer_stops_at = 10; });
  Node& second = add_decoder();
  may_replace_with_encoder(encoder);
  may_replace_with_decoder(second);
  const auto asked = request(60, 100);
  const auto sink = submit(encoder, first, asked);
  ASSERT_TRUE(sink->wait_tokens(10));
  first.script->decoder_throws = true;
  expect_answer(sink, asked);
  first.decoder = DecoderStageActor{};
  EXPECT_EQ(routes_->decoders_replaced, 1);
  EXPECT_EQ(first.script->bad_blocks, 0);
  expect_level();
}

TEST_P(FailoverTest, ADecoderThatDiesWhileThePromptIsRead) {
  Node& encoder = add_encoder(reads_a_part);
  Node& first = add_decoder();
  Node& second = add_decoder();
  may_replace_with_encoder(encoder);
  may_replace_with_decoder(second);
  const auto asked = request(80, 100);
  const auto sink = submit(encoder, first, asked);
  wait_for_blocks(sink, first, 2);
  end(first.decoder);
  first.decoder = DecoderStageActor{};
  encoder.script->encoder_chunks = 1000;
  expect_answer(sink, asked);
  expect_level();
}

/// Twice in one answer, the second time behind tokens of the second decoder.
TEST_P(FailoverTest, DecodersMayDieOneAfterTheOther) {
  Node& encoder = add_encoder();
  Node& first = add_decoder([](test::EngineScript& s) { s.answer_stops_at = 5; });
  Node& second = add_decoder([](test::EngineScript& s) { s.answer_stops_at = 20; });
  Node& third = add_decoder();
  for (Node* next : {&second, &third}) {
    may_replace_with_encoder(encoder);
    may_replace_with_decoder(*next);
  }
  const auto asked = request(60, 100);
  const auto sink = submit(encoder, first, asked);
  ASSERT_TRUE(sink->wait_tokens(5));
  first.script->decoder_throws = true;
  ASSERT_TRUE(sink->wait_tokens(20));
  second.script->decoder_throws = true;
  expect_answer(sink, asked);
  first.decoder = DecoderStageActor{};
  second.decoder = DecoderStageActor{};
  expect_level();
}

TEST_P(FailoverTest, WithoutAnotherDecoderTheRequestFailsByName) {
  Node& encoder = add_encoder();
  Node& decoder = add_decoder([](test::EngineScript& s) { s.answer_stops_at = 3; });
  const auto sink = submit(encoder, decoder, request(60, 100));
  ASSERT_TRUE(sink->wait_tokens(3));
  decoder.script->decoder_throws = true;
  EXPECT_EQ(error_of(sink).code, Errc::unavailable);
  EXPECT_THAT(error_of(sink).context, HasSubstr("the decoder stage went down"));
  decoder.decoder = DecoderStageActor{};
  expect_level();
}

/// A request that an engine cannot run would take every stage of the cluster down if it were tried everywhere.
TEST_P(FailoverTest, AnErrorOfTheEngineIsNotTriedElsewhere) {
  Node& encoder = add_encoder([](test::EngineScript& s) { s.encoder_fails = true; });
  Node& other = add_encoder();
  Node& decoder = add_decoder();
  may_replace_with_encoder(other);
  EXPECT_EQ(error_of(submit(encoder, decoder, request(10))).code, Errc::internal);
  EXPECT_EQ(routes_->encoders_replaced, 0);
  encoder.script->encoder_fails = false;
  expect_level();
}

}  // namespace
}  // namespace cedar::actors
