#include "actors/system.h"

#include "tests/actors/fixture.h"

namespace cedar::actors {
namespace {

using engine::FinishReason;
using test::CollectingSink;
using test::eventually;
using namespace std::chrono_literals;

TEST_F(SystemTest, ARequestReadsItsPromptAndWritesItsAnswer) {
  start();
  const auto sink = std::make_shared<CollectingSink>();
  client().submit(request(20), sink);
  const auto end = sink->wait_end();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->reason, FinishReason::stop);
  std::vector<TokenId> expected = request(20).decode.prompt;
  expected.push_back(1);
  EXPECT_EQ(sink->tokens(), expected);
  EXPECT_EQ(sink->computed(), (std::vector<int64_t>{0, 8, 16, 20}));
  EXPECT_EQ(script_->bad_blocks, 0);
  EXPECT_TRUE(eventually([&] { return idle(); }));
}

TEST_F(SystemTest, TheTokenLimitEndsAnAnswer) {
  start();
  const auto sink = std::make_shared<CollectingSink>();
  client().submit(request(20, 3), sink);
  const auto end = sink->wait_end();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->reason, FinishReason::length);
  EXPECT_EQ(sink->tokens().size(), 3U);
}

TEST_F(SystemTest, ManyRequestsShareTheStagesAndLeaveNothingBehind) {
  script_->sequences = 3;
  start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (size_t i = 0; i < 60; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    client().submit(request(1 + i % 17, 20), sinks.back());
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    const auto end = sinks[i]->wait_end();
    ASSERT_TRUE(end) << i;
    EXPECT_EQ(end->reason, FinishReason::stop) << (end->error ? end->error->message() : "");
    EXPECT_EQ(sinks[i]->tokens().size(), 2 + i % 17);
    EXPECT_EQ(sinks[i]->finishes(), 1);
  }
  EXPECT_EQ(script_->bad_blocks, 0);
  EXPECT_TRUE(eventually([&] { return idle(); }));
}

// The encoder's pages must stay as they are until the decoder has copied them.
TEST_F(SystemTest, BlocksStayValidForASlowDecoder) {
  script_->import_us = 2000;
  script_->sequences = 2;
  start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<RequestId> ids;
  for (size_t i = 0; i < 8; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ids.push_back(client().submit(request(40, 50), sinks.back()));
    if (i % 2 == 1) client().cancel(ids[i]);
  }
  for (const auto& sink : sinks) ASSERT_TRUE(sink->wait_end());
  EXPECT_EQ(script_->bad_blocks, 0);
  EXPECT_TRUE(eventually([&] { return idle(); }));
}

TEST_F(SystemTest, CancellationWhileReadingFreesBothStages) {
  script_->encoder_step_us = 2000;
  script_->blocks = 4096;
  start();
  const auto sink = std::make_shared<CollectingSink>();
  const RequestId id = client().submit(request(4000), sink);
  ASSERT_TRUE(sink->wait_progress());
  client().cancel(id);
  const auto end = sink->wait_end();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->reason, FinishReason::cancelled);
  EXPECT_TRUE(eventually([&] { return idle(); }, 1s));
  EXPECT_LT(script_->encoder_steps, 200);  // of 500
  EXPECT_TRUE(sink->tokens().empty());
}

TEST_F(SystemTest, CancellationWhileWritingStopsWithinAStep) {
  script_->decoder_step_us = 1000;
  script_->blocks = 100000;
  endless_answers();
  start();
  const auto sink = std::make_shared<CollectingSink>();
  const RequestId id = client().submit(request(8, 100000), sink);
  ASSERT_TRUE(sink->wait_tokens(3));
  client().cancel(id);
  ASSERT_TRUE(sink->wait_end());
  ASSERT_TRUE(eventually([&] { return idle(); }, 1s));
  const int64_t steps = script_->decoder_steps;
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(script_->decoder_steps, steps);
}

TEST_F(SystemTest, CancellingAnUnknownOrFinishedRequestDoesNothing) {
  start();
  client().cancel(RequestId{999});
  const auto sink = std::make_shared<CollectingSink>();
  const RequestId id = client().submit(request(4), sink);
  ASSERT_TRUE(sink->wait_end());
  client().cancel(id);
  const auto second = std::make_shared<CollectingSink>();
  client().submit(request(4), second);
  ASSERT_TRUE(second->wait_end());
  EXPECT_EQ(sink->finishes(), 1);
}

// B17: ten clients leave before their first token; the short prompt after them must not wait for theirs.
TEST_F(SystemTest, AbandonedPromptsDoNotDelayTheNextOne) {
  script_->encoder_step_us = 10000;
  script_->sequences = 1;
  script_->blocks = 4096;
  start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<RequestId> ids;
  for (int i = 0; i < 10; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ids.push_back(client().submit(request(4000), sinks.back()));
  }
  std::this_thread::sleep_for(50ms);
  for (RequestId id : ids) client().cancel(id);
  const int64_t before = script_->encoder_steps;
  const auto sink = std::make_shared<CollectingSink>();
  client().submit(request(8), sink);
  ASSERT_TRUE(sink->wait_tokens(1));
  // The running chunk, one more, and its own on a free machine; an abandoned prompt alone has 500.
  EXPECT_LT(script_->encoder_steps - before, 100);
  for (const auto& abandoned : sinks) {
    const auto end = abandoned->wait_end();
    ASSERT_TRUE(end);
    EXPECT_EQ(end->reason, FinishReason::cancelled);
  }
}

// B54, B01: cancelled requests leave the pools as they were, however often it happens.
TEST_F(SystemTest, RandomCancellationsLeaveNothingBehind) {
  script_->sequences = 4;
  start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 200; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    const RequestId id =
        client().submit(request(static_cast<size_t>(1 + i % 40), 20), sinks.back());
    if (i % 3 == 0) client().cancel(id);
    if (i % 7 == 0) std::this_thread::sleep_for(1ms);
  }
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->wait_end());
    EXPECT_EQ(sink->finishes(), 1);
  }
  EXPECT_TRUE(eventually([&] { return idle(); }));
  EXPECT_EQ(script_->bad_blocks, 0);
}

// B73: actors of requests that fail before their first message are gone as well.
TEST_F(SystemTest, RefusedRequestsLeaveNoActorBehind) {
  start();
  for (int i = 0; i < 50; ++i) {
    const auto sink = std::make_shared<CollectingSink>();
    const RequestId id = client().submit(request(4), sink);
    client().cancel(id);  // often before the session has handled anything
    ASSERT_TRUE(sink->wait_end());
  }
  EXPECT_TRUE(eventually([&] { return idle(); }));
}

// B75: an ordered stop with a hundred live streams.
TEST_F(SystemTest, DrainEndsLiveStreamsAndTheSystemStops) {
  script_->sequences = 100;
  script_->blocks = 100 * 2600;
  script_->decoder_step_us = 500;
  endless_answers();
  start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 100; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    client().submit(request(4, 10000), sinks.back());
  }
  ASSERT_TRUE(sinks.back()->wait_tokens(1));
  system_->drain(10ms);
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->finishes(), 1);
    EXPECT_EQ(sink->wait_end()->reason, FinishReason::cancelled);
  }
  const auto late = std::make_shared<CollectingSink>();
  client().submit(request(4), late);
  const auto refused = late->wait_end();
  ASSERT_TRUE(refused && refused->error);
  EXPECT_EQ(refused->error->code, Errc::unavailable);
  EXPECT_FALSE(client().stats().ready);
  system_.reset();
}

TEST_F(SystemTest, DrainLetsRunningAnswersFinish) {
  script_->decoder_step_us = 2000;
  start();
  const auto sink = std::make_shared<CollectingSink>();
  client().submit(request(10), sink);
  ASSERT_TRUE(sink->wait_tokens(1));
  system_->drain(10s);
  EXPECT_EQ(sink->wait_end()->reason, FinishReason::stop);
  EXPECT_EQ(sink->tokens().size(), 11U);
}

TEST_F(SystemTest, StoppingWithoutDrainStillTellsEverySink) {
  script_->decoder_step_us = 500;
  script_->sequences = 2;
  script_->blocks = 100000;
  endless_answers();
  start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 6; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    client().submit(request(4, 10000), sinks.back());
  }
  ASSERT_TRUE(sinks.front()->wait_tokens(1));
  system_.reset();
  for (const auto& sink : sinks) EXPECT_EQ(sink->finishes(), 1);
}

}  // namespace
}  // namespace cedar::actors
