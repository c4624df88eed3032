// Index keys spread over indexers that are other nodes of the data plane: the answers of engines do not change, whoever
// answers, fails, is late, is full or forgets.

#include "actors/index_messages.h"
#include "actors/index_server.h"
#include "actors/index_spread.h"
#include "actors/service_methods.h"
#include "tests/support/spread_work.h"
#include "tests/transport/backends.h"

namespace cedar::actors {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Answers;
using test::answers_of;
using test::soon;
using test::Work;

class IndexServiceTest : public ::testing::TestWithParam<test::TransportBackend> {
 protected:
  struct Node {
    std::unique_ptr<transport::Calls> calls = std::make_unique<transport::Calls>();
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<IndexServer> server;

    ~Node() { stop(); }
    void stop() {
      calls->shutdown();
      if (transport) transport->shutdown();
      server.reset();
    }
    IndexHolder holder(const std::string& name) const {
      return {name, {"127.0.0.1", transport->listen_port(), transport->identity()}};
    }
  };

  std::unique_ptr<Node> add(uint32_t id) {
    auto node = std::make_unique<Node>();
    transport::TransportOptions options = network_.options(id);
    node->calls->install(options);
    node->transport = network_.add(options).transport;
    node->calls->attach(*node->transport);
    return node;
  }
  Node& add_server(const IndexServerOptions& options = {}) {
    auto node = add(static_cast<uint32_t>(servers_.size()) + 2);
    auto server = IndexServer::start(*node->calls, options);
    EXPECT_TRUE(server.has_value()) << server.error().message();
    node->server = std::move(*server);
    servers_.push_back(std::move(node));
    return *servers_.back();
  }
  /// `servers` indexers and a stage that knows them.
  void open(int servers, const IndexServerOptions& server = {},
            const IndexSpreadOptions& spread = patient()) {
    for (int i = 0; i < servers; ++i) add_server(server);
    stage_ = add(1);
    spread_ = std::make_shared<IndexSpread>(*stage_->calls, spread);
    announce();
  }
  /// Nothing is late because the machine is busy.
  static IndexSpreadOptions patient() {
    IndexSpreadOptions options;
    options.scan_timeout = options.append_timeout = seconds(30);
    return options;
  }
  void announce() {
    std::vector<IndexHolder> holders;
    for (size_t i = 0; i < servers_.size(); ++i) {
      holders.push_back(servers_[i]->holder("indexer-" + std::to_string(i)));
    }
    spread_->set_holders(std::move(holders));
  }
  Answers answers(const std::function<void()>& each_step = {}) {
    return answers_of(testing::mini_model(), work_, spread_, 1, each_step);
  }
  Answers alone() { return answers_of(testing::mini_model(), work_, nullptr, 0); }
  /// Every step sees what the steps before have handed out.
  std::function<void()> settled() {
    return
        [this] { EXPECT_TRUE(soon([&] { return stage_->calls->stats().calls_unanswered == 0; })); };
  }
  void expect_free() {
    EXPECT_EQ(spread_->stats().sequences, 0);
    for (const auto& node : servers_) {
      if (!node->server) continue;
      EXPECT_TRUE(soon([&] {
        const engine::IndexKeyStoreStats keys = node->server->stats().keys;
        return keys.parts == 0 && keys.bytes_used == 0;
      }));
    }
  }

  void TearDown() override {
    if (stage_) stage_->stop();
    for (const auto& node : servers_) node->stop();
  }

  Work work_{.lengths = {390, 120}, .new_tokens = 30};
  test::Network network_{GetParam()};
  std::vector<std::unique_ptr<Node>> servers_;
  std::unique_ptr<Node> stage_;
  std::shared_ptr<IndexSpread> spread_;
};

TEST_P(IndexServiceTest, AnswersAsAlone) {
  open(3);
  EXPECT_EQ(answers(settled()), alone());
  const IndexSpreadStats stats = spread_->stats();
  EXPECT_EQ(stats.failed_scan_calls, 0U);
  EXPECT_EQ(stats.failed_append_calls, 0U);
  EXPECT_EQ(stats.failed_holders, 0);
  // Both engines hand out every block: (390 + 120) / 36 of them, and what is written.
  EXPECT_GE(stats.appended_blocks, 20U);
  for (const auto& node : servers_) {
    EXPECT_GE(node->server->stats().scans, 20U);
    EXPECT_GE(node->server->stats().appends, 2U);
  }
  expect_free();
}

TEST_P(IndexServiceTest, AScanOfManyCalls) {
  IndexSpreadOptions options = patient();
  options.scan_bytes = 2000;  // three rows or so
  options.append_bytes = 1;   // a block a step
  open(2, {}, options);
  EXPECT_EQ(answers(settled()), alone());
  // One for each of two indexers would do.
  EXPECT_GT(spread_->stats().scan_calls, 2 * spread_->stats().scans);
  expect_free();
}

TEST_P(IndexServiceTest, AnIndexerThatDiesIsNotMissedNorAskedAgain) {
  open(2);
  int steps = 0;
  const Answers got = answers([&] {
    settled()();
    if (++steps == 12) servers_[1]->stop();
  });
  EXPECT_EQ(got, alone());
  const IndexSpreadStats stats = spread_->stats();
  EXPECT_EQ(stats.failed_holders, 1);
  EXPECT_GE(stats.failed_scan_calls + stats.failed_append_calls, 1U);
  EXPECT_LE(stats.failed_scan_calls, 2U);
  expect_free();
}

TEST_P(IndexServiceTest, AnIndexerThatSaysNothingCostsOneDeadline) {
  IndexSpreadOptions options = patient();
  options.scan_timeout = milliseconds(1000);
  open(1, {}, options);
  std::vector<transport::CallReply> kept;
  std::mutex mutex;
  int steps = 0;
  const Answers got = answers([&] {
    if (steps < 12) settled()();
    if (++steps != 12) return;
    servers_[0]->calls->serve(
        kScanIndexKeys, [&](const transport::CallContext&, Bytes, transport::CallReply reply) {
          std::lock_guard lock(mutex);
          kept.push_back(std::move(reply));
        });
  });
  EXPECT_EQ(got, alone());
  EXPECT_EQ(spread_->stats().failed_holders, 1);
  EXPECT_EQ(spread_->stats().failed_scan_calls, 1U);
  // The directory changes: it is asked again, and answers.
  servers_[0]->server.reset();
  servers_[0]->server = std::move(*IndexServer::start(*servers_[0]->calls, {}));
  announce();
  EXPECT_EQ(spread_->stats().failed_holders, 0);
  EXPECT_EQ(answers(settled()), alone());
  EXPECT_GE(servers_[0]->server->stats().scans, 1U);
}

TEST_P(IndexServiceTest, AnIndexerThatAnswersNonsenseIsNotBelieved) {
  open(2);
  std::mt19937 random(5);
  servers_[1]->calls->serve(kScanIndexKeys, [&](const transport::CallContext&, const Bytes& request,
                                                transport::CallReply reply) {
    reply(
        Bytes(request.begin(), request.begin() + static_cast<int64_t>(random() % request.size())));
  });
  EXPECT_EQ(answers(settled()), alone());
  EXPECT_EQ(spread_->stats().failed_holders, 1);
}

TEST_P(IndexServiceTest, LeasesEndAndKeysAreHandedOutAgain) {
  IndexServerOptions options;
  options.lease = milliseconds(0);
  open(2, options);
  EXPECT_EQ(answers(settled()), alone());
  const IndexSpreadStats stats = spread_->stats();
  EXPECT_GT(stats.failed_scan_calls, 10U);
  EXPECT_EQ(stats.failed_holders, 0);
  EXPECT_GT(stats.appended_blocks, 40U);
  expect_free();
}

TEST_P(IndexServiceTest, AFullIndexerTakesWhatItCan) {
  IndexServerOptions options;
  options.memory_bytes = 64 << 10;  // one page: the blocks of one part
  open(2, options);
  work_.lengths = {390, 380, 200};
  EXPECT_EQ(answers(settled()), alone());
  EXPECT_EQ(spread_->stats().failed_holders, 0);
  EXPECT_GT(spread_->stats().failed_append_calls, 0U);
  EXPECT_GT(spread_->stats().appended_blocks, 0U);
  expect_free();
}

TEST_P(IndexServiceTest, AStageThatIsLostLeavesNothing) {
  open(1);
  const engine::IndexBlockLayout layout{{{0, 4}}, 17};
  const engine::IndexSequence sequence = spread_->open(layout);
  std::vector<int32_t> blocks = spread_->wanted(sequence, 3);
  EXPECT_EQ(blocks, (std::vector<int32_t>{0, 1, 2}));
  spread_->append(sequence, std::move(blocks), Bytes(3 * 68));
  EXPECT_TRUE(soon([&] { return servers_[0]->server->stats().keys.blocks == 3; }));
  stage_->stop();
  EXPECT_TRUE(soon([&] { return servers_[0]->server->stats().keys.parts == 0; }));
  EXPECT_EQ(servers_[0]->server->stats().lost_owners, 1U);
}

TEST_P(IndexServiceTest, WithoutIndexersNothingLeaves) {
  open(0);
  EXPECT_EQ(answers(), alone());
  EXPECT_EQ(spread_->stats().scan_calls, 0U);
}

INSTANTIATE_TEST_SUITE_P(Backends, IndexServiceTest,
                         ::testing::ValuesIn(test::transport_backends()),
                         [](const auto& backend) { return backend.param.name; });

}  // namespace
}  // namespace cedar::actors
