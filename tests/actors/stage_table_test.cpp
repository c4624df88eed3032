// Which stage a request goes to. Stages are actors that do nothing.

#include "actors/stage_table.h"

#include <gtest/gtest.h>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/send.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <set>

#include "actors/errors.h"

namespace cedar::actors {
namespace {

class IdleEncoder final : public EncoderStageActor::base {
 public:
  using EncoderStageActor::base::base;
  behavior_type make_behavior() override {
    return {[](const BeginPrefill&) {}, [](const CancelWork&) {}, [](const LeaseReturned&) {}};
  }
};
class IdleDecoder final : public DecoderStageActor::base {
 public:
  using DecoderStageActor::base::base;
  behavior_type make_behavior() override {
    return {[](const ReserveRoom& m) { return RoomReserved{m.id}; }, [](const ImportBlocks&) {},
            [](const TakeOver&) {}, [](const CancelWork&) {}};
  }
};
class IdleCache final : public KvCacheActor::base {
 public:
  using KvCacheActor::base::base;
  behavior_type make_behavior() override {
    return {[](const LookupPrefix&) { return PrefixLease{}; }, [](const StoreBlocks&) {},
            [](const StoreWindows&) {}, [](const ReleaseLease&) {},
            [](UsageAtom) { return CacheUsage{}; }};
  }
};

class StageTableTest : public testing::Test {
 protected:
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
  std::vector<caf::actor> stages_;
  StageTable table_;

  void SetUp() override {
    config_.set("scheduler.max-threads", size_t{1});
    system_ = std::make_unique<caf::actor_system>(config_);
  }
  void TearDown() override {
    table_.clear();
    for (const caf::actor& stage : stages_) {
      caf::anon_send(stage, caf::exit_msg{caf::actor_addr{}, caf::exit_reason::user_shutdown});
    }
    stages_.clear();
  }
  NodeDescription encoder(const std::string& name, StageCapacity capacity = {4, 100, 4},
                          uint64_t generation = 1) {
    NodeDescription node;
    node.name = name;
    node.generation = generation;
    node.encoder = system_->spawn<IdleEncoder>();
    node.encoder_capacity = capacity;
    stages_.push_back(caf::actor_cast<caf::actor>(node.encoder));
    return node;
  }
  NodeDescription decoder(const std::string& name, StageCapacity capacity = {4, 100, 4}) {
    NodeDescription node;
    node.name = name;
    node.generation = 1;
    node.decoder = system_->spawn<IdleDecoder>();
    node.decoder_capacity = capacity;
    stages_.push_back(caf::actor_cast<caf::actor>(node.decoder));
    return node;
  }
  NodeDescription cache(const std::string& name, uint64_t generation = 1) {
    NodeDescription node;
    node.name = name;
    node.generation = generation;
    node.cache = system_->spawn<IdleCache>();
    stages_.push_back(caf::actor_cast<caf::actor>(node.cache));
    return node;
  }
  std::string chosen(const Need& need = {1, 4}, uint64_t prefix = 0, int64_t slack = 0,
                     const caf::actor_addr& avoid = {}) {
    const EncoderEntry* stage = table_.choose_encoder(need, prefix, slack, avoid);
    return stage == nullptr ? "" : stage->node;
  }
};

TEST_F(StageTableTest, AnEmptyTableHasNothing) {
  EXPECT_EQ(chosen(), "");
  EXPECT_EQ(table_.choose_decoder({1, 0}), nullptr);
  EXPECT_FALSE(table_.has_encoder());
  EXPECT_EQ(table_.largest_decoder().blocks, 0);
  table_.release({}, {1, 1});
}

TEST_F(StageTableTest, TheLeastLoadedStageWithRoomIsChosen) {
  const auto a = encoder("a");
  const auto b = encoder("b");
  EXPECT_EQ(table_.join(a).size(), 1U);
  table_.join(b);
  table_.promise(a.encoder.address(), {10, 40});
  EXPECT_EQ(chosen(), "b");
  table_.promise(b.encoder.address(), {20, 80});
  EXPECT_EQ(chosen(), "a");
  EXPECT_EQ(chosen({91, 364}), "");
  EXPECT_EQ(chosen({90, 360}), "a");
  EXPECT_EQ(chosen({80, 320}), "a");
  table_.release(a.encoder.address(), {10, 40});
  table_.promise(a.encoder.address(), {85, 4});
  EXPECT_EQ(chosen({20, 80}), "b");  // the only one with room
  for (int i = 0; i < 3; ++i) table_.promise(b.encoder.address(), {0, 0});
  EXPECT_EQ(chosen({20, 80}), "");  // no slot
}

TEST_F(StageTableTest, WorkOfOtherGatewaysCountsAsReported) {
  const auto a = encoder("a");
  const auto b = encoder("b");
  table_.join(a);
  table_.join(b);
  NodeReport report{"a", 1, false, {}};
  report.load.encoder_queued_tokens = 1000;
  table_.report(report);
  EXPECT_EQ(chosen(), "b");
  report.generation = 2;
  report.name = "b";
  report.load.encoder_queued_tokens = 5000;
  table_.report(report);  // of another life
  EXPECT_EQ(chosen(), "b");
  EXPECT_EQ(table_.total_load().encoder_queued_tokens, 1000);
}

TEST_F(StageTableTest, ADrainingNodeGetsNothingNew) {
  table_.join(encoder("a"));
  table_.join(decoder("d"));
  table_.report({"a", 1, true, {}});
  table_.report({"d", 1, true, {}});
  EXPECT_EQ(chosen(), "");
  EXPECT_EQ(table_.choose_decoder({1, 0}), nullptr);
  EXPECT_FALSE(table_.has_encoder());
  EXPECT_FALSE(table_.has_decoder());
}

TEST_F(StageTableTest, PromptsThatBeginAlikeGoToTheSameEncoderUnlessItHasTooMuchToRead) {
  std::vector<NodeDescription> nodes;
  for (const char* name : {"a", "b", "c"}) {
    nodes.push_back(encoder(name));
    table_.join(nodes.back());
  }
  std::set<std::string> used;
  for (uint64_t prefix = 1; prefix <= 60; ++prefix) {
    const std::string first = chosen({1, 4}, prefix, 8);
    EXPECT_EQ(chosen({1, 4}, prefix, 8), first);
    used.insert(first);
  }
  EXPECT_EQ(used.size(), 3U);
  const std::string preferred = chosen({1, 4}, 7, 8);
  for (const auto& node : nodes) {
    if (node.name == preferred) table_.promise(node.encoder.address(), {2, 8});
  }
  EXPECT_EQ(chosen({1, 4}, 7, 8), preferred);
  EXPECT_NE(chosen({1, 4}, 7, 7), preferred);
}

TEST_F(StageTableTest, OnlyThePrefixesOfALostEncoderMove) {
  std::map<uint64_t, std::string> before;
  for (const char* name : {"a", "b", "c"}) table_.join(encoder(name));
  for (uint64_t prefix = 1; prefix <= 50; ++prefix) before[prefix] = chosen({1, 4}, prefix, 8);
  EXPECT_TRUE(table_.leave("b", 1));
  for (const auto& [prefix, node] : before) {
    if (node != "b") {
      EXPECT_EQ(chosen({1, 4}, prefix, 8), node);
    }
  }
}

TEST_F(StageTableTest, ConversationsOfALostCacheMoveAndComeBackWithIt) {
  const auto a = cache("a");
  const auto b = cache("b");
  EXPECT_EQ(table_.join(a).size(), 1U);  // watched
  table_.join(b);
  std::set<uint64_t> at_b;
  for (uint64_t prefix = 1; prefix <= 50; ++prefix) {
    if (table_.choose_cache(prefix) == b.cache) at_b.insert(prefix);
    else EXPECT_EQ(table_.choose_cache(prefix), a.cache);
  }
  EXPECT_GT(at_b.size(), 5U);
  EXPECT_LT(at_b.size(), 45U);
  EXPECT_TRUE(table_.drop(b.cache.address()));
  for (uint64_t prefix = 1; prefix <= 50; ++prefix) {
    EXPECT_EQ(table_.choose_cache(prefix), a.cache);
  }
  // Its next life gets the conversations of the former one, which says nothing any more.
  const auto next = cache("b", 2);
  table_.join(next);
  EXPECT_FALSE(table_.leave("b", 1));
  const auto at = [&](uint64_t prefix) { return at_b.count(prefix) != 0 ? next.cache : a.cache; };
  for (uint64_t prefix = 1; prefix <= 50; ++prefix) {
    EXPECT_EQ(table_.choose_cache(prefix), at(prefix));
  }
  NodeReport draining;
  draining.name = "b";
  draining.generation = 2;
  draining.draining = true;
  EXPECT_TRUE(table_.report(draining));
  EXPECT_EQ(table_.choose_cache(*at_b.begin()), a.cache);
  EXPECT_TRUE(table_.leave("a", 1));
  EXPECT_FALSE(table_.choose_cache(1));
}

TEST_F(StageTableTest, PrefixesAreOfWholeBlocksOnly) {
  const std::vector<TokenId> prompt{1, 2, 3, 4, 5};
  std::vector<TokenId> longer = prompt;
  longer.push_back(6);
  EXPECT_EQ(prefix_hash(prompt, 6), 0U);
  EXPECT_NE(prefix_hash(prompt, 4), 0U);
  EXPECT_EQ(prefix_hash(prompt, 4), prefix_hash(longer, 4));
  EXPECT_NE(prefix_hash(longer, 6), prefix_hash(longer, 5));
}

TEST_F(StageTableTest, ALostStageIsAvoidedUnlessItIsTheOnlyOne) {
  const auto a = encoder("a");
  table_.join(a);
  EXPECT_EQ(chosen({1, 4}, 0, 0, a.encoder.address()), "a");
  const auto b = encoder("b", {1, 100, 4});
  table_.join(b);
  EXPECT_EQ(chosen({1, 4}, 0, 0, a.encoder.address()), "b");
  table_.promise(b.encoder.address(), {1, 4});
  EXPECT_EQ(chosen({1, 4}, 0, 0, a.encoder.address()), "");  // b will have room again
}

TEST_F(StageTableTest, AStageThatRegistersAgainKeepsItsPromises) {
  auto a = encoder("a", {1, 100, 4});
  table_.join(a);
  table_.promise(a.encoder.address(), {1, 4});
  EXPECT_TRUE(table_.join(a).empty());
  EXPECT_EQ(chosen(), "");
  const auto next = encoder("a", {1, 100, 4}, 2);
  EXPECT_EQ(table_.join(next).size(), 1U);
  EXPECT_EQ(chosen(), "a");
  EXPECT_FALSE(table_.drop(a.encoder.address()));
  EXPECT_FALSE(table_.leave("a", 1));
  EXPECT_EQ(chosen(), "a");
  EXPECT_TRUE(table_.drop(next.encoder.address()));
  EXPECT_EQ(chosen(), "");
}

TEST_F(StageTableTest, DecodersAreChosenByTheirSequences) {
  const auto d = decoder("d");
  const auto e = decoder("e");
  table_.join(d);
  table_.join(e);
  table_.promise(d.decoder.address(), {1, 0});
  EXPECT_EQ(table_.choose_decoder({1, 0})->node, "e");
  NodeReport report{"e", 1, false, {}};
  report.load.decoder_sequences = 3;
  table_.report(report);
  EXPECT_EQ(table_.choose_decoder({1, 0})->node, "d");
  EXPECT_EQ(table_.choose_decoder({1, 0}, d.decoder.address())->node, "e");
}

}  // namespace
}  // namespace cedar::actors
