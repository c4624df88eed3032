// Several encoders and decoders: who gets which request, and what happens when they come, go and fall silent.

#include <caf/send.hpp>

#include "actors/local_stages.h"
#include "tests/actors/fixture.h"

namespace cedar::actors {
namespace {

using engine::FinishReason;
using test::CollectingSink;
using test::eventually;
using testing::HasSubstr;
using namespace std::chrono_literals;

/// A router to which the test brings nodes of its own.
class NodesTest : public testing::Test {
 protected:
  struct Node {
    std::shared_ptr<test::EngineScript> script = std::make_shared<test::EngineScript>();
    std::shared_ptr<LoadBoard> board = std::make_shared<LoadBoard>();
    LocalStagesActor stages;
  };

  RouterOptions router_;
  std::unique_ptr<System::Impl> impl_ = std::make_unique<System::Impl>(SystemOptions{});
  NodeListener door_;
  std::map<std::string, Node> nodes_;

  void SetUp() override {
    router_.tick = 5ms;
    router_.stage_grace = 100ms;
    router_.sum_reports = true;
  }
  void start() {
    const auto actor = impl_->system->spawn<Router>(router_, impl_->board);
    impl_->router = caf::actor_cast<RouterActor>(actor);
    door_ = caf::actor_cast<NodeListener>(actor);
    impl_->client = std::make_unique<ActorClient>(*impl_->system, impl_->router, impl_->board);
  }
  void TearDown() override {
    for (auto& [name, node] : nodes_)
      end_actor(caf::actor_cast<caf::strong_actor_ptr>(node.stages));
    nodes_.clear();
    destroy(door_);
    impl_->stop();
  }
  /// A node with one stage, as LocalStages of another process would register it.
  Node& add(const std::string& name, bool encoder, bool reports = true) {
    Node& node = nodes_[name];
    LocalStagesOptions options;
    options.node = name;
    options.encoder = {node.script->sequences, node.script->blocks, node.script->block_tokens};
    options.decoder = options.encoder;
    options.max_restarts = 0;
    if (reports) options.board = node.board;
    options.report_interval = 5ms;
    StageSpawners spawners =
        detached_stages(encoder ? test::encoder_factory(node.script, impl_->memory) : nullptr,
                        encoder ? nullptr : test::decoder_factory(node.script), impl_->plane,
                        impl_->memory, node.board);
    node.stages = impl_->system->spawn<LocalStages>(options, std::move(spawners),
                                                    std::vector<NodeListener>{door_});
    return node;
  }
  Client& client() { return *impl_->client; }
  bool ready() { return client().stats().ready; }
  std::shared_ptr<CollectingSink> submit(size_t prompt_tokens, int64_t max_new_tokens,
                                         TokenId first = 10) {
    GenerateRequest request;
    request.decode.prompt.resize(prompt_tokens);
    std::iota(request.decode.prompt.begin(), request.decode.prompt.end(), first);
    request.decode.max_new_tokens = max_new_tokens;
    const auto sink = std::make_shared<CollectingSink>();
    client().submit(std::move(request), sink);
    return sink;
  }
  static Error error_of(CollectingSink& sink) {
    const auto end = sink.wait_end();
    if (!end || !end->error) return make_error(Errc::ok, "no error");
    return *end->error;
  }
};

TEST_F(NodesTest, WorkIsSpreadOverAllStages) {
  start();
  for (const char* name : {"e1", "e2"}) add(name, true).script->encoder_step_us = 500;
  for (const char* name : {"d1", "d2"}) add(name, false);
  ASSERT_TRUE(eventually([&] { return ready(); }));
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 40; ++i) sinks.push_back(submit(40, 5, 10 + 7 * i));
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->wait_end());
    EXPECT_EQ(sink->wait_end()->reason, FinishReason::length);
  }
  for (const auto& [name, node] : nodes_) {
    const int64_t steps =
        name[0] == 'e' ? node.script->encoder_steps.load() : node.script->decoder_steps.load();
    EXPECT_GT(steps, 0) << name;
  }
}

TEST_F(NodesTest, PromptsThatBeginAlikeGoToOneEncoder) {
  start();
  add("e1", true);
  add("e2", true);
  add("d1", false);
  const int64_t blocks = nodes_["e1"].script->blocks + nodes_["e2"].script->blocks;
  ASSERT_TRUE(eventually([&] {
    return ready() && client().stats().encoder_free_blocks == blocks;
  }));  // both are known
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(submit(40, 2)->wait_end());
  const int64_t first = nodes_["e1"].script->encoder_steps;
  const int64_t second = nodes_["e2"].script->encoder_steps;
  EXPECT_EQ(std::min(first, second), 0);
  EXPECT_GT(std::max(first, second), 0);
}

TEST_F(NodesTest, ANodeThatJoinsTakesWorkThatWaits) {
  router_.stage_grace = 60s;
  start();
  add("e1", true);
  const auto early = submit(8, 3);
  EXPECT_TRUE(eventually([&] { return client().stats().queued == 1; }));
  add("d1", false);
  const auto end = early->wait_end();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->reason, FinishReason::length);
}

TEST_F(NodesTest, WithoutAStageRequestsWaitForTheGraceOnly) {
  start();
  add("e1", true);
  const auto sink = submit(8, 3);
  EXPECT_EQ(error_of(*sink).code, Errc::unavailable);
  EXPECT_THAT(error_of(*sink).context, HasSubstr("the decoder is missing"));
}

TEST_F(NodesTest, WhatCannotFitAnyStageIsRefusedAndWhatFitsTheLargestIsNot) {
  start();
  add("e1", true);
  add("d1", false);
  Node& big = nodes_["d2"];
  big.script->blocks = 1000;
  add("d2", false);
  ASSERT_TRUE(eventually([&] { return client().stats().decoder_total_blocks == 1064; }));
  const auto sink = submit(8, 4 * 500);
  EXPECT_TRUE(sink->wait_tokens(1));
  EXPECT_THAT(error_of(*submit(8, 4 * 1000)).context, HasSubstr("the decoder has 1000"));
}

TEST_F(NodesTest, ADrainingNodeFinishesAndGetsNothingNew) {
  start();
  add("e1", true);
  nodes_["d1"].script->blocks = 10000;
  add("d1", false, false).script->decoder_step_us = 1000;
  nodes_["d1"].script->answer = [](const std::vector<TokenId>&) {
    return std::vector<TokenId>(100000, 7);
  };
  ASSERT_TRUE(eventually([&] { return ready(); }));
  const auto running = submit(8, 30000);
  ASSERT_TRUE(running->wait_tokens(1));
  caf::anon_send(door_, NodeReport{"d1", impl_->plane.endpoint.generation, true, {}});
  ASSERT_TRUE(eventually([&] { return !ready(); }));
  EXPECT_THAT(error_of(*submit(8, 3)).context, HasSubstr("the decoder is missing"));
  EXPECT_EQ(running->finishes(), 0);
}

// B12: many more at once than there is room for; whoever does not run waits, and everyone ends.
TEST_F(NodesTest, ABurstOfRequestsIsServedOrRefusedAtOnce) {
  router_.max_queued = 150;
  start();
  for (const char* name : {"e1", "d1"}) {
    Node& node = nodes_[name];
    node.script->sequences = 4;
    add(name, name[0] == 'e');
  }
  ASSERT_TRUE(eventually([&] { return ready(); }));
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 200; ++i) sinks.push_back(submit(20, 3, 10 + i));
  int served = 0;
  for (const auto& sink : sinks) {
    const auto end = sink->wait_end();
    ASSERT_TRUE(end);
    if (end->reason == FinishReason::length) ++served;
    else EXPECT_EQ(end->error->code, Errc::overloaded);
  }
  EXPECT_GE(served, 154);
  EXPECT_TRUE(eventually([&] { return client().stats().decoder_sequences == 0; }));
}

TEST_F(NodesTest, EngramRowsAreCountedOverLivesAndNodes) {
  start();
  const auto report = [&](const char* node, uint64_t generation, int64_t hits, int64_t late) {
    NodeReport message{node, generation, false, {}};
    message.load.engram.hits = hits;
    message.load.engram.late = late;
    caf::anon_send(door_, message);
  };
  const auto counted = [&](int64_t hits, int64_t late) {
    return eventually([&] {
      const EngramCounts counts = client().stats().engram;
      return counts.hits == hits && counts.late == late;
    });
  };
  report("e1", 1, 10, 1);
  report("d1", 1, 5, 0);
  EXPECT_TRUE(counted(15, 1));
  report("e1", 1, 12, 2);
  EXPECT_TRUE(counted(17, 2));
  report("e1", 2, 3, 0);  // came back
  EXPECT_TRUE(counted(20, 2));
  report("e1", 1, 100, 100);  // late news of its former life
  report("d1", 1, 6, 0);
  EXPECT_TRUE(counted(21, 2));
}

}  // namespace
}  // namespace cedar::actors
