// The router: who may start, who waits, who is refused, and what a missing stage means.

#include <atomic>

#include "tests/actors/fixture.h"

namespace cedar::actors {
namespace {

using engine::FinishReason;
using test::CollectingSink;
using test::eventually;
using testing::HasSubstr;
using namespace std::chrono_literals;

Error error_of(CollectingSink& sink) {
  const auto end = sink.wait_end();
  if (!end || !end->error) return make_error(Errc::ok, "no error");
  return *end->error;
}

TEST_F(SystemTest, AFullQueueRefusesAtOnce) {
  script_->sequences = 1;
  script_->decoder_step_us = 1000;
  router_.max_queued = 1;
  script_->blocks = 10000;
  endless_answers();
  start();
  const auto running = std::make_shared<CollectingSink>();
  const auto waiting = std::make_shared<CollectingSink>();
  const auto refused = std::make_shared<CollectingSink>();
  const RequestId first = client().submit(request(4, 10000), running);
  ASSERT_TRUE(running->wait_tokens(1));
  client().submit(request(4, 3), waiting);
  client().submit(request(4, 3), refused);
  const Error error = error_of(*refused);
  EXPECT_EQ(error.code, Errc::overloaded);
  EXPECT_THAT(error.context, HasSubstr("1 requests wait"));
  EXPECT_EQ(waiting->positions(), (std::vector<int64_t>{0}));
  client().cancel(first);
  const auto end = waiting->wait_end();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->reason, FinishReason::length);
}

TEST_F(SystemTest, LowerPriorityValuesGoFirst) {
  script_->sequences = 1;
  script_->blocks = 10000;
  script_->decoder_step_us = 1000;
  endless_answers();
  start();
  const auto running = std::make_shared<CollectingSink>();
  const RequestId first = client().submit(request(4, 10000), running);
  ASSERT_TRUE(running->wait_tokens(1));
  const auto late = std::make_shared<CollectingSink>();
  const auto urgent = std::make_shared<CollectingSink>();
  client().submit(request(4, 5), late);
  GenerateRequest first_in_line = request(4, 5);
  first_in_line.priority = -1;
  client().submit(std::move(first_in_line), urgent);
  ASSERT_TRUE(eventually([&] { return client().stats().queued == 2; }));
  client().cancel(first);
  ASSERT_TRUE(urgent->wait_end());
  EXPECT_TRUE(late->tokens().empty());
  ASSERT_TRUE(late->wait_end());
}

// B21: what can never fit is refused at once, with need and capacity.
TEST_F(SystemTest, ARequestThatCanNeverFitNamesNeedAndCapacity) {
  start();
  const auto prompt = std::make_shared<CollectingSink>();
  client().submit(request(4 * 65), prompt);
  EXPECT_EQ(error_of(*prompt).code, Errc::context_too_long);
  EXPECT_THAT(error_of(*prompt).context, HasSubstr("needs 65 KV blocks, the encoder has 64"));
  const auto answer = std::make_shared<CollectingSink>();
  client().submit(request(4, 4 * 64), answer);
  EXPECT_THAT(error_of(*answer).context, HasSubstr("needs 65 KV blocks, the decoder has 64"));
}

TEST_F(SystemTest, ADeadlineEndsAWaitingRequest) {
  script_->sequences = 1;
  script_->blocks = 10000;
  script_->decoder_step_us = 1000;
  endless_answers();
  start();
  const auto running = std::make_shared<CollectingSink>();
  client().submit(request(4, 10000), running);
  ASSERT_TRUE(running->wait_tokens(1));
  GenerateRequest impatient = request(4);
  impatient.deadline = 20ms;
  const auto sink = std::make_shared<CollectingSink>();
  client().submit(std::move(impatient), sink);
  EXPECT_EQ(error_of(*sink).code, Errc::deadline_exceeded);
  EXPECT_EQ(running->finishes(), 0);
}

TEST_F(SystemTest, ADeadlineEndsARunningRequestAndFreesItsRoom) {
  script_->blocks = 10000;
  script_->decoder_step_us = 1000;
  endless_answers();
  start();
  GenerateRequest impatient = request(4, 10000);
  impatient.deadline = 30ms;
  const auto sink = std::make_shared<CollectingSink>();
  client().submit(std::move(impatient), sink);
  EXPECT_EQ(error_of(*sink).code, Errc::deadline_exceeded);
  EXPECT_FALSE(sink->tokens().empty());
  EXPECT_TRUE(eventually([&] { return idle(); }));
}

TEST_F(SystemTest, ADeadDecoderIsStartedAgainAndItsAnswersGoOn) {
  script_->blocks = 10000;
  script_->decoder_step_us = 1000;
  endless_answers();
  start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    client().submit(request(4, 300), sinks.back());
  }
  ASSERT_TRUE(sinks.back()->wait_tokens(1));
  script_->decoder_throws = true;
  for (const auto& sink : sinks) {
    const auto end = sink->wait_end();
    ASSERT_TRUE(end);
    EXPECT_EQ(end->reason, FinishReason::length);
    EXPECT_EQ(sink->tokens().size(), 300U);
  }
  EXPECT_FALSE(script_->decoder_throws);
  EXPECT_TRUE(eventually([&] { return idle(); }));
}

TEST_F(SystemTest, ADeadEncoderIsStartedAgainAndItsPromptsAreReadAgain) {
  script_->blocks = 10000;
  script_->decoder_step_us = 500;
  script_->answer = [](const std::vector<TokenId>&) { return std::vector<TokenId>(100, 7); };
  start();
  const auto writing = std::make_shared<CollectingSink>();
  client().submit(request(4, 1000), writing);
  ASSERT_TRUE(writing->wait_tokens(1));
  script_->encoder_step_us = 2000;
  const auto reading = std::make_shared<CollectingSink>();
  client().submit(request(800, 5), reading);
  ASSERT_TRUE(reading->wait_progress());
  script_->encoder_throws = true;
  ASSERT_TRUE(reading->wait_end());
  EXPECT_EQ(reading->wait_end()->reason, FinishReason::length);
  EXPECT_FALSE(script_->encoder_throws);
  const auto end = writing->wait_end();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->reason, FinishReason::stop);
  EXPECT_EQ(writing->tokens().size(), 101U);
  EXPECT_TRUE(eventually([&] { return idle(); }));
}

TEST_F(SystemTest, AStageThatKeepsDyingIsGivenUpAndRequestsAreRefused) {
  stages_.max_restarts = 1;
  start();
  script_->cannot_start = true;
  script_->encoder_throws = true;
  const auto sink = std::make_shared<CollectingSink>();
  client().submit(request(4), sink);
  EXPECT_EQ(error_of(*sink).code, Errc::unavailable);
  // Between its death and the end of the budget the stage is up for moments.
  EXPECT_TRUE(eventually([&] {
    const auto next = std::make_shared<CollectingSink>();
    client().submit(request(4), next);
    const Error error = error_of(*next);
    EXPECT_EQ(error.code, Errc::unavailable);
    return error.context == "the encoder is missing";
  }));
  EXPECT_FALSE(client().stats().ready);
}

TEST_F(SystemTest, ACacheThatCannotStartIsDoneWithout) {
  auto impl = std::make_unique<System::Impl>(SystemOptions{});
  stages_.encoder = {script_->sequences, script_->blocks, script_->block_tokens};
  stages_.decoder = stages_.encoder;
  stages_.max_restarts = 2;
  StageSpawners spawners = detached_stages(test::encoder_factory(script_, impl->memory),
                                           test::decoder_factory(script_), *impl);
  std::atomic<int> starts{0};
  spawners.cache = [&starts, make = cache_spawner({.bytes = int64_t{1} << 60}, 1 << 20, impl->plane,
                                                  impl->board)](caf::actor_system& system) {
    ++starts;
    return make(system);
  };
  impl->start_router(router_, stages_, std::move(spawners));
  system_ = std::make_unique<System>(std::move(impl));
  // The router, the stages and who starts them are left.
  ASSERT_TRUE(eventually([&] { return starts == 3 && client().stats().live_actors == 4; }));
  // Whoever starts them has heard of the last death by the end of these.
  for (int i = 0; i < 50; ++i) {
    const auto sink = std::make_shared<CollectingSink>();
    client().submit(request(4), sink);
    ASSERT_EQ(error_of(*sink).message(), "ok: no error") << i;
  }
  EXPECT_TRUE(client().stats().ready);
}

TEST_F(SystemTest, AFailedStepFailsItsRequestsAndTheStageGoesOn) {
  start();
  script_->decoder_fails = true;
  const auto sink = std::make_shared<CollectingSink>();
  client().submit(request(4), sink);
  EXPECT_EQ(error_of(*sink).code, Errc::internal);
  EXPECT_THAT(error_of(*sink).context, HasSubstr("scripted failure"));
  script_->decoder_fails = false;
  script_->encoder_fails = true;
  const auto second = std::make_shared<CollectingSink>();
  client().submit(request(4), second);
  EXPECT_EQ(error_of(*second).code, Errc::internal);
  script_->encoder_fails = false;
  const auto third = std::make_shared<CollectingSink>();
  client().submit(request(4), third);
  ASSERT_TRUE(third->wait_end());
  EXPECT_EQ(third->wait_end()->reason, FinishReason::stop);
  EXPECT_TRUE(eventually([&] { return idle(); }));
}

// The ledger may believe in room that the engine does not have yet: the stage lets the request wait.
TEST_F(SystemTest, StagesKeepRequestsUntilTheirEngineHasRoom) {
  script_->sequences = 1;
  start();
  System::Impl generous{SystemOptions{}};
  LocalStagesOptions options = stages_;
  options.encoder.sequences = 100;
  options.decoder.sequences = 100;
  generous.start_router(router_, options,
                        detached_stages(test::encoder_factory(script_, generous.memory),
                                        test::decoder_factory(script_), generous));
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<RequestId> ids;
  for (int i = 0; i < 12; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ids.push_back(generous.client->submit(request(12, 8), sinks.back()));
  }
  generous.client->cancel(ids[7]);
  for (const auto& sink : sinks) ASSERT_TRUE(sink->wait_end());
  EXPECT_EQ(sinks[6]->wait_end()->reason, FinishReason::length);
  EXPECT_TRUE(eventually([&] { return generous.client->stats().decoder_sequences == 0; }));
  generous.stop();
}

TEST(OnceSink, ADroppedRequestStillTellsItsSink) {
  const auto sink = std::make_shared<CollectingSink>();
  { OnceSink once(sink); }
  EXPECT_EQ(error_of(*sink).code, Errc::unavailable);
  const auto finished = std::make_shared<CollectingSink>();
  {
    OnceSink once(finished);
    once.finish(FinishReason::stop);
    once.fail(make_error(Errc::internal, "late"));
    once.event(QueuedEvent{1});
  }
  EXPECT_EQ(finished->finishes(), 1);
  EXPECT_TRUE(finished->positions().empty());
}

}  // namespace
}  // namespace cedar::actors
