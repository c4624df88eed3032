// A decoder spread over several nodes: it writes what one decoder writes, and every rank's pools return to their level,
// whatever is cancelled or lost.

#include "actors/decoder_face.h"
#include "actors/decoder_part.h"
#include "actors/decoder_wire.h"
#include "tests/actors/pipeline_fixture.h"

namespace cedar::actors {
namespace {

using namespace std::chrono_literals;
using Tokens = std::vector<TokenId>;

class DecoderPipelineTest : public PipelineFixture<DecoderPart> {
 protected:
  DecoderPipelineTest() : PipelineFixture("writer", 0) {}

  void TearDown() override {
    for (const auto& node : nodes_) end(node->decoder);
    PipelineFixture::TearDown();
  }

  void start(Rank& rank, const PipelinePlace& here) override {
    const auto model = load(model::Role::decoder, here);
    if (here.is_face()) {
      const DecoderFaceSetup setup{model, engine::local_engram_source(model), rank_options(),
                                   rank.node->plane, here};
      rank.node->decoder = system_->spawn<DecoderStage, caf::detached>(
          DecoderStageSetup{[setup] { return make_decoder_face(setup); },
                            rank.node->plane,
                            rank.node->board,
                            {},
                            nullptr});
      EXPECT_TRUE(test::eventually([&] { return rank.node->board->decoder_free_blocks > 0; }));
    } else {
      auto part = DecoderPart::start(
          rank.node->plane, {model, engine::local_engram_source(model), rank_options(), here});
      EXPECT_TRUE(part.has_value()) << part.error().message();
      rank.part = std::move(*part);
    }
  }

  static GenerateRequest request_of(Tokens prompt, int64_t tokens = 10) {
    GenerateRequest request;
    request.decode.prompt = std::move(prompt);
    request.decode.max_new_tokens = tokens;
    request.decode.sampling.temperature = 0;
    request.decode.sampling.frequency_penalty = 0.5F;  // the rank that samples knows the output
    request.decode.sampling.logprobs = 0;
    request.decode.ignore_eos = true;
    return request;
  }
  static GenerateRequest prompt_of(size_t length, int64_t tokens = 10) {
    return request_of(RemoteEnginesTest::prompt_of(length).decode.prompt, tokens);
  }
  /// Tokens, and their log-probabilities: these differ wherever anything does.
  std::pair<Tokens, std::vector<float>> answer_of_one_process(const GenerateRequest& request) {
    auto engine = engine::Engine::create(testing::mini_model(), options_);
    EXPECT_TRUE(engine.has_value());
    std::pair<Tokens, std::vector<float>> answer;
    const auto submitted =
        (*engine)->submit(request.decode, {}, [&](const engine::TokenEvent& event) {
          answer.first.push_back(event.token.token);
          answer.second.push_back(event.token.logprob.value_or(0));
        });
    EXPECT_TRUE(submitted.has_value());
    while (!(*engine)->idle()) EXPECT_TRUE((*engine)->step().has_value());
    return answer;
  }
  void expect_one_process(const Sink& sink, const GenerateRequest& request) {
    const auto end = sink->wait_end(60s);
    ASSERT_TRUE(end);
    ASSERT_FALSE(end->error) << end->error->message();
    EXPECT_EQ(std::pair(sink->tokens(), sink->logprobs()), answer_of_one_process(request));
  }
  /// Of all ranks that live.
  void expect_ranks_level() {
    expect_level();
    const auto level = [&] {
      for (const auto& rank : ranks_) {
        if (rank->node->faults().cut) continue;
        if (rank->node->transport().stats().leases_live != 0) return false;
        if (!rank->part) continue;
        const DecoderPartLoad load = rank->part->load();
        if (load.sequences != 0 || load.free_blocks != blocks_) return false;
      }
      return true;
    };
    EXPECT_TRUE(test::eventually(level, 20s));
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, DecoderPipelineTest, ::testing::ValuesIn(handoff_backends()),
                         [](const auto& backend) { return backend.param.name; });

// Ranks below, around and above the boundary layer, which is 6 of 11.
TEST_P(DecoderPipelineTest, GoldenAndOtherPromptsWriteWhatOneProcessWrites) {
  const auto ranks = add_pipeline({0, 3, 8, 11});
  Node& encoder = add_real_encoder();
  std::vector<GenerateRequest> requests;
  for (const size_t length : {1, 2, 35, 36, 37, 71, 72, 73, 101, 144}) {
    requests.push_back(prompt_of(length));
  }
  const auto manifest = testing::read_json(testing::golden_path("manifest.json"));
  for (const auto& prompt : manifest.at("prompts")) {
    requests.push_back(request_of(prompt.get<Tokens>()));
  }
  std::vector<Sink> sinks;
  for (const GenerateRequest& request : requests) {
    sinks.push_back(submit(encoder, *ranks[0]->node, request));
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    SCOPED_TRACE(requests[i].decode.prompt.size());
    expect_one_process(sinks[i], requests[i]);
  }
  expect_ranks_level();
}

TEST_P(DecoderPipelineTest, ACutAtTheBoundary) {
  const auto ranks = add_pipeline({0, 6, 11});
  Node& encoder = add_real_encoder();
  for (const size_t length : {1, 101, 144}) {
    const auto request = prompt_of(length);
    expect_one_process(submit(encoder, *ranks[0]->node, request), request);
  }
  expect_ranks_level();
}

TEST_P(DecoderPipelineTest, CancelledAnswersLeaveNothingInAnyRank) {
  const auto ranks = add_pipeline({0, 4, 7, 11});
  Node& encoder = add_real_encoder();
  // All of them have room at a time, and none can come to its end while the others begin.
  const int64_t kEach = blocks_ / 4;
  const int64_t tokens = kEach * testing::mini_model()->layout.block_tokens - 64;
  std::vector<Sink> sinks;
  for (size_t i = 0; i < 4; ++i) {
    sinks.push_back(submit(encoder, *ranks[0]->node, prompt_of(60 + i, tokens)));
  }
  for (const Sink& sink : sinks) {
    EXPECT_TRUE(test::eventually([&] { return sink->tokens().size() > 3; }, 30s));
  }
  const auto expect_cancelled = [&](size_t i) {
    const auto end = sinks[i]->wait_end(30s);
    ASSERT_TRUE(end);
    EXPECT_EQ(end->reason, engine::FinishReason::cancelled);
    EXPECT_LT(std::ssize(sinks[i]->tokens()), tokens);
  };
  for (size_t i = 1; i < 4; ++i) cancel(i);
  for (size_t i = 1; i < 4; ++i) expect_cancelled(i);
  // What they held is free everywhere while the first answer goes on.
  const auto only_the_first = [&] {
    if (ranks[0]->node->board->decoder_free_blocks != blocks_ - kEach) return false;
    return std::all_of(ranks.begin() + 1, ranks.end(), [&](const Rank* rank) {
      const DecoderPartLoad load = rank->part->load();
      return load.sequences == 1 && load.free_blocks == blocks_ - kEach;
    });
  };
  EXPECT_TRUE(test::eventually(only_the_first, 20s));
  cancel(0);
  expect_cancelled(0);
  expect_ranks_level();
  const auto request = prompt_of(40);
  expect_one_process(submit(encoder, *ranks[0]->node, request), request);
  expect_ranks_level();
}

TEST_P(DecoderPipelineTest, ALostRankCostsNoAnswerThatAnotherDecoderCanWrite) {
  const auto ranks = add_pipeline({0, 5, 11});
  Node& encoder = add_real_encoder();
  Node& other = add_real_decoder();
  const auto request = prompt_of(50, 300);
  {
    std::lock_guard lock(routes_->mutex);
    routes_->encoders.push_back(encoder.as_encoder());
    routes_->decoders.push_back(other.as_decoder());
  }
  const auto sink = submit(encoder, *ranks[0]->node, request);
  EXPECT_TRUE(test::eventually([&] { return sink->tokens().size() > 5; }, 30s));
  ranks[1]->node->faults().cut = true;
  const auto end = sink->wait_end(60s);
  ASSERT_TRUE(end);
  ASSERT_FALSE(end->error) << end->error->message();
  EXPECT_EQ(sink->tokens().size(), 300u);
  EXPECT_EQ(routes_->decoders_replaced, 1);
  // It comes back as a later life, and the pipeline works again.
  Rank& back = add_rank(1, 2);
  list({&back});
  const auto next = prompt_of(77);
  expect_one_process(submit(encoder, *ranks[0]->node, next), next);
  const auto level = [&] {
    return ranks[0]->node->board->decoder_free_blocks == blocks_ &&
           back.part->load().sequences == 0;
  };
  EXPECT_TRUE(test::eventually(level, 20s));
}

TEST_P(DecoderPipelineTest, WithoutAllRanksThereIsNoDecoder) {
  const auto ranks = add_pipeline({0, 5, 7, 11});
  Node& encoder = add_real_encoder();
  list({ranks[1]});
  EXPECT_EQ(error_of(submit(encoder, *ranks[0]->node, prompt_of(5))).code, Errc::unavailable);
  expect_ranks_level();
}

TEST_P(DecoderPipelineTest, WhatTheRankThatSamplesRefusesIsRefused) {
  const auto ranks = add_pipeline({0, 5, 11});
  Node& encoder = add_real_encoder();
  auto request = prompt_of(5);
  request.decode.constraint = "regex a+";
  EXPECT_EQ(error_of(submit(encoder, *ranks[0]->node, request)).code, Errc::unsupported);
  expect_ranks_level();
}

TEST(DecoderWire, AnyBytesAreSafeInput) {
  PipelineStep step;
  step.face = 7;
  step.cut = 3;
  step.route.push_back({"127.0.0.1", 4711, 9, 12});
  step.live = {RequestId{1}, RequestId{2}};
  step.newest = 2;
  step.chunk.parts.push_back({RequestId{1}, 40, true, true, {1, 2, 3}, {9, 8}});
  step.rows.resize(40);
  const auto bytes = encode(step);
  const auto copy = decode_step(bytes);
  ASSERT_TRUE(copy.has_value());
  EXPECT_EQ(encode(*copy), bytes);
  SequenceOpening opening{7, RequestId{5}, 10, 20, engine::DecodeRequest{}};
  opening.request->prompt = {1, 2, 3};
  opening.request->sampling.logit_bias = {{4, 1.5F}};
  const auto opened = encode(opening);
  EXPECT_EQ(encode(*decode_opening(opened)), opened);
  EXPECT_EQ(decode_opening(opened)->request->prompt, opening.request->prompt);
  std::vector<engine::TokenEvent> events(2);
  events[1].error = make_error(Errc::internal, "why");
  events[1].finish = engine::FinishReason::failed;
  EXPECT_EQ(encode(*decode_events(encode(events))), encode(events));
  const auto block = encode(SequenceBlock{7, RequestId{5}, 3, std::span(bytes).first(20)});
  EXPECT_EQ(encode(*decode_block(block)), block);
  const auto start = encode(SequenceStart{7, RequestId{5}, bytes});
  EXPECT_EQ(encode(*decode_start(start)), start);
  const auto close = encode(SequenceClose{7, RequestId{5}});
  EXPECT_EQ(encode(*decode_close(close)), close);
  const auto answer = encode(events);
  const auto refuses_other_lengths = [](std::vector<std::byte> message, auto decode) {
    for (size_t length = 0; length < message.size(); ++length) {
      EXPECT_FALSE(decode(std::span(message).first(length)).has_value()) << length;
    }
    message.push_back(std::byte(0));
    EXPECT_FALSE(decode(message).has_value());
  };
  refuses_other_lengths(bytes, decode_step);
  refuses_other_lengths(opened, decode_opening);
  refuses_other_lengths(block, decode_block);
  refuses_other_lengths(start, decode_start);
  refuses_other_lengths(close, decode_close);
  refuses_other_lengths(answer, decode_events);
  for (const auto& message : {bytes, opened, block, start, close, answer}) {
    std::mt19937 random(1);
    for (int i = 0; i < 10000; ++i) {
      auto damaged = message;
      for (int j = 0; j < 3; ++j) damaged[random() % damaged.size()] = std::byte(random() % 256);
      (void)decode_step(damaged);
      (void)decode_opening(damaged);
      (void)decode_block(damaged);
      (void)decode_start(damaged);
      (void)decode_close(damaged);
      (void)decode_events(damaged);
    }
  }
}

}  // namespace
}  // namespace cedar::actors
