// Rows through services: nodes of one process on a loopback network, each with calls and a service of its own.

#include "actors/remote_engram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "actors/engram_service.h"
#include "actors/engram_wire.h"
#include "actors/service_directory.h"
#include "actors/service_methods.h"
#include "engine/engram_tables.h"
#include "model/engram_layout.h"
#include "tests/support/eventually.h"
#include "transport/calls.h"
#include "transport/loopback.h"

namespace cedar::actors {
namespace {

using test::eventually;
using testing::HasSubstr;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class RemoteEngramTest : public testing::Test {
 protected:
  struct Node {
    std::unique_ptr<transport::Calls> calls;
    std::unique_ptr<transport::Transport> transport;
    DataPlane plane;
    std::unique_ptr<NodeService> service;
    DirectoryEntry entry;
    /// What the service does instead of answering.
    std::mutex mutex;
    std::vector<transport::CallReply> held;

    ~Node() {
      calls->shutdown();
      service.reset();
      held.clear();
      transport->shutdown();
    }
  };

  void SetUp() override {
    auto loaded = model::load_checkpoint(std::string(CEDAR_SOURCE_DIR) + "/tests/golden/mini",
                                         model::Role::encoder);
    ASSERT_TRUE(loaded) << loaded.error().message();
    checkpoint_ = std::make_shared<const model::Checkpoint>(std::move(*loaded));
    auto layout = model::make_engram_layout(checkpoint_->config);
    ASSERT_TRUE(layout);
    layout_ = std::move(*layout);
    whole_ = tables({});
    user_ = add(1);
  }

  std::shared_ptr<const engine::EngramTables> tables(engine::EngramShard shard) const {
    return *engine::EngramTables::create(checkpoint_, shard);
  }

  std::unique_ptr<Node> add(uint32_t id, uint64_t generation = 1) {
    auto node = std::make_unique<Node>();
    node->calls = std::make_unique<transport::Calls>();
    transport::TransportOptions options;
    options.identity = {NodeId(id), generation};
    node->calls->install(options);
    node->transport = std::move(*transport::make_loopback_transport(options, hub_));
    node->calls->attach(*node->transport);
    node->plane = make_data_plane(*node->transport, "127.0.0.1");
    node->plane.calls = node->calls.get();
    node->plane.directory = &directory_;
    return node;
  }
  std::unique_ptr<Node> add_service(uint32_t id, engine::EngramShard shard,
                                    uint64_t generation = 1) {
    auto node = add(id, generation);
    node->service = std::move(*engram_service(tables(shard))(node->plane));
    node->entry = {"n" + std::to_string(id), node->plane.endpoint, {node->service->description()}};
    return node;
  }
  /// Takes questions and answers none.
  static void hold(Node& node) {
    node.calls->serve(
        kFetchEngramRows,
        [&node](const transport::CallContext&, std::vector<std::byte>, transport::CallReply reply) {
          std::lock_guard lock(node.mutex);
          node.held.push_back(std::move(reply));
        });
  }
  void list(const std::vector<const Node*>& nodes) {
    std::vector<DirectoryEntry> entries;
    for (const Node* node : nodes) entries.push_back(node->entry);
    directory_.update("gw", std::move(entries));
  }

  std::unique_ptr<RemoteEngram> source(const RemoteEngramOptions& options = {}) {
    return std::make_unique<RemoteEngram>(user_->plane, layout_, whole_->row_bytes(), options);
  }
  static RemoteEngramOptions quick() {
    RemoteEngramOptions options;
    options.timeout = 400ms;
    return options;
  }
  LayerId layer(size_t i = 0) const { return layout_.layers.at(i).layer; }
  std::vector<int64_t> random_rows(size_t count, uint32_t seed, size_t layer_idx = 0) const {
    std::mt19937_64 random(seed);
    std::vector<int64_t> rows(count);
    const auto table_rows = static_cast<uint64_t>(layout_.layers.at(layer_idx).rows);
    for (int64_t& row : rows) row = static_cast<int64_t>(random() % table_rows);
    return rows;
  }
  std::vector<uint8_t> expected(LayerId layer, const std::vector<int64_t>& rows) const {
    std::vector<uint8_t> out(rows.size() * static_cast<size_t>(whole_->row_bytes()));
    EXPECT_TRUE(whole_->copy(layer, rows, out.data()));
    return out;
  }
  Result<std::vector<uint8_t>> fetch(RemoteEngram& source, const std::vector<int64_t>& rows,
                                     size_t layer_idx = 0) const {
    std::vector<uint8_t> out(rows.size() * static_cast<size_t>(whole_->row_bytes()));
    const Status status = source.fetch(layer(layer_idx), rows, out.data());
    if (!status) return status.error();
    return out;
  }
  void expect_rows(RemoteEngram& source, const std::vector<int64_t>& rows,
                   size_t layer_idx = 0) const {
    const auto got = fetch(source, rows, layer_idx);
    ASSERT_TRUE(got) << got.error().message();
    EXPECT_TRUE(*got == expected(layer(layer_idx), rows));
  }

  std::shared_ptr<const model::Checkpoint> checkpoint_;
  model::EngramLayout layout_;
  std::shared_ptr<const engine::EngramTables> whole_;
  std::shared_ptr<transport::LoopbackHub> hub_ = transport::make_loopback_hub();
  ServiceDirectory directory_;
  std::unique_ptr<Node> user_;
};

TEST_F(RemoteEngramTest, RowsOfAllShardsComeInTheirOrder) {
  const auto a = add_service(2, {0, 3}), b = add_service(3, {1, 3}), c = add_service(4, {2, 3});
  list({a.get(), b.get(), c.get()});
  for (const int64_t cache_bytes : {int64_t{0}, int64_t{20000}, int64_t{64} << 20}) {
    RemoteEngramOptions options;
    options.cache_bytes = cache_bytes;
    const auto remote = source(options);
    for (uint32_t seed = 0; seed < 5; ++seed) {
      for (size_t i = 0; i < layout_.layers.size(); ++i) {
        expect_rows(*remote, random_rows(1 + seed * 300, seed % 3, i), i);
      }
    }
    expect_rows(*remote, {});
    expect_rows(*remote, std::vector<int64_t>(100, 5));  // one row, a hundred times
  }
}

TEST_F(RemoteEngramTest, HotRowsAreNotAskedForAgain) {
  const auto a = add_service(2, {});
  list({a.get()});
  RemoteEngramOptions options;
  const auto board = std::make_shared<LoadBoard>();
  options.board = board;
  const auto remote = source(options);
  const auto rows = random_rows(200, 1);
  expect_rows(*remote, rows);
  const RemoteEngramStats first = remote->stats();
  EXPECT_EQ(first.hits, 0);
  EXPECT_GT(first.misses, 100);  // some of the random rows are the same
  EXPECT_EQ(first.calls, 1);
  expect_rows(*remote, rows);
  const RemoteEngramStats second = remote->stats();
  EXPECT_EQ(second.calls, 1);
  EXPECT_EQ(second.hits, first.misses);
  EXPECT_EQ(board->engram_hits, first.misses);
  EXPECT_EQ(board->engram_misses, first.misses);
  RemoteEngramOptions none;
  none.cache_bytes = 0;
  const auto without = source(none);
  expect_rows(*without, rows);
  expect_rows(*without, rows);
  EXPECT_EQ(without->stats().calls, 2);
}

TEST_F(RemoteEngramTest, RowsAskedForAheadAreThere) {
  const auto a = add_service(2, {});
  list({a.get()});
  for (const int64_t cache_bytes : {int64_t{0}, int64_t{64} << 20}) {
    RemoteEngramOptions options;
    options.cache_bytes = cache_bytes;
    const auto remote = source(options);
    const auto rows = random_rows(300, 2);
    remote->prefetch(layer(), rows);
    remote->prefetch(layer(), rows);  // asked for once
    ASSERT_TRUE(eventually([&] { return a->calls->stats().serving == 0; }));
    ASSERT_TRUE(eventually([&] { return user_->calls->stats().calls_unanswered == 0; }));
    expect_rows(*remote, rows);
    const RemoteEngramStats stats = remote->stats();
    EXPECT_EQ(stats.calls, 1);
    EXPECT_EQ(stats.ahead, stats.prefetched);
    EXPECT_EQ(stats.misses + stats.late, 0);
    EXPECT_EQ(stats.unused, 0);
  }
}

TEST_F(RemoteEngramTest, LateRowsAreWaitedForAndCounted) {
  const auto a = add_service(2, {});
  hold(*a);
  list({a.get()});
  const auto remote = source();
  const auto rows = random_rows(50, 3);
  remote->prefetch(layer(), rows);
  ASSERT_TRUE(eventually([&] {
    std::lock_guard lock(a->mutex);
    return a->held.size() == 1;
  }));
  std::thread answer([&] {
    ASSERT_TRUE(eventually([&] { return remote->stats().late > 0; }));
    std::vector<int64_t> sorted = rows;
    std::sort(sorted.begin(), sorted.end());
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    const auto bytes = expected(layer(), sorted);
    std::vector<std::byte> reply(bytes.size());
    std::memcpy(reply.data(), bytes.data(), bytes.size());
    std::lock_guard lock(a->mutex);
    a->held[0](std::move(reply));
  });
  expect_rows(*remote, rows);
  answer.join();
  EXPECT_EQ(remote->stats().calls, 1);  // not asked for twice
  EXPECT_EQ(remote->stats().late, remote->stats().prefetched);
}

TEST_F(RemoteEngramTest, AskingAheadIsBounded) {
  const auto a = add_service(2, {});
  hold(*a);
  list({a.get()});
  RemoteEngramOptions options;
  options.ahead_bytes = 100 * whole_->row_bytes();
  const auto remote = source(options);
  std::vector<int64_t> some, more;
  for (int64_t row = 0; row < 80; ++row) some.push_back(row), more.push_back(row + 80);
  remote->prefetch(layer(), some);
  remote->prefetch(layer(), more);
  EXPECT_EQ(remote->stats().prefetched, 80);
}

TEST_F(RemoteEngramTest, AReplicaTakesOverFromOneThatFails) {
  const auto a = add_service(2, {}), b = add_service(3, {});
  a->calls->serve(kFetchEngramRows, [](const transport::CallContext&, std::vector<std::byte>,
                                       transport::CallReply reply) {
    reply(make_error(Errc::unavailable, "the disk is gone"));
  });
  list({a.get(), b.get()});
  const auto remote = source();
  for (uint32_t i = 0; i < 6; ++i) expect_rows(*remote, random_rows(100, i));
  EXPECT_EQ(remote->stats().calls_failed, 1);  // it is passed over then
  EXPECT_EQ(remote->stats().failed_fetches, 0);
}

TEST_F(RemoteEngramTest, AReplicaTakesOverFromOneThatIsSlow) {
  const auto a = add_service(2, {}), b = add_service(3, {});
  hold(*a);
  list({a.get(), b.get()});
  const auto remote = source(quick());
  for (uint32_t i = 0; i < 6; ++i) expect_rows(*remote, random_rows(100, i));
  EXPECT_EQ(remote->stats().failed_fetches, 0);
  EXPECT_GE(remote->stats().calls_failed, 1);
  EXPECT_LE(remote->stats().calls_failed, 2);
}

TEST_F(RemoteEngramTest, AReplicaTakesOverFromOneThatLeaves) {
  auto a = add_service(2, {});
  const auto b = add_service(3, {});
  list({a.get(), b.get()});
  const auto remote = source();
  for (uint32_t i = 0; i < 4; ++i) expect_rows(*remote, random_rows(100, i));
  a.reset();  // and the directory does not know yet
  for (uint32_t i = 4; i < 12; ++i) expect_rows(*remote, random_rows(100, i));
  EXPECT_EQ(remote->stats().failed_fetches, 0);
  EXPECT_GE(remote->stats().calls_failed, 1);
}

TEST_F(RemoteEngramTest, WithoutAReplicaTheFetchFailsByNameAndInTime) {
  auto a = add_service(2, {0, 2}), b = add_service(3, {1, 2});
  const auto remote = source(quick());
  const auto nobody = fetch(*remote, {1});
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code, Errc::unavailable);
  EXPECT_THAT(nobody.error().context, HasSubstr("no node of the cluster serves Engram tables"));

  list({a.get()});
  const auto rows = random_rows(100, 1);  // of both shards
  const auto begin = Clock::now();
  const auto half = fetch(*remote, rows);
  ASSERT_FALSE(half);
  EXPECT_EQ(half.error().code, Errc::unavailable);
  EXPECT_THAT(half.error().context, HasSubstr("Engram shard 1 of 2"));
  EXPECT_GE(Clock::now() - begin, 400ms);

  list({a.get(), b.get()});
  expect_rows(*remote, rows);
  b.reset();
  const auto gone = fetch(*remote, random_rows(100, 7));
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, Errc::unavailable);
  EXPECT_THAT(gone.error().context, HasSubstr("Engram shard 1 of 2"));
  // Its next life is used as soon as it is known.
  b = add_service(3, {1, 2}, 2);
  list({a.get(), b.get()});
  expect_rows(*remote, random_rows(100, 8));
}

TEST_F(RemoteEngramTest, AFetchWaitsForANodeThatIsAboutToCome) {
  RemoteEngramOptions patient;
  patient.timeout = 20s;
  const auto remote = source(patient);
  const auto a = add_service(2, {});
  std::thread later([&] {
    std::this_thread::sleep_for(50ms);
    list({a.get()});
  });
  expect_rows(*remote, random_rows(100, 1));
  later.join();
}

TEST_F(RemoteEngramTest, ANodeOfAnotherTableIsNotAskedForEver) {
  const auto a = add_service(2, {1, 2});
  a->entry.services[0].shard = 0;  // it says so, and has others
  const auto b = add_service(3, {1, 2});
  list({a.get(), b.get()});
  const auto remote = source(quick());
  const auto begin = Clock::now();
  const auto wrong = fetch(*remote, {0});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, Errc::invalid_argument);
  EXPECT_THAT(wrong.error().context, HasSubstr("shard 1 of 2"));
  EXPECT_LT(Clock::now() - begin, 350ms);
}

TEST_F(RemoteEngramTest, OneSourceServesSeveralEngines) {
  const auto a = add_service(2, {0, 2}), b = add_service(3, {1, 2}), c = add_service(4, {0, 2});
  list({a.get(), b.get(), c.get()});
  RemoteEngramOptions options;
  options.cache_bytes = 100000;
  options.timeout = 20s;
  const auto remote = source(options);
  std::vector<std::thread> engines;
  for (uint32_t thread = 0; thread < 4; ++thread) {
    engines.emplace_back([&, thread] {
      for (uint32_t i = 0; i < 30; ++i) {
        const size_t l = i % layout_.layers.size();
        const auto rows = random_rows(200, i / 2 + thread % 2, l);
        if (i % 3 == 0) remote->prefetch(layer(l), random_rows(200, i / 2 + 1, l));
        expect_rows(*remote, rows, l);
      }
    });
  }
  for (std::thread& engine : engines) engine.join();
  EXPECT_EQ(remote->stats().failed_fetches, 0);
}

TEST_F(RemoteEngramTest, ShutdownEndsAFetch) {
  const auto a = add_service(2, {});
  hold(*a);
  list({a.get()});
  RemoteEngramOptions patient;
  patient.timeout = 60s;
  const auto remote = source(patient);
  std::thread stop([&] {
    ASSERT_TRUE(eventually([&] { return user_->calls->stats().calls_unanswered == 1; }));
    user_->calls->shutdown();
  });
  const auto begin = Clock::now();
  EXPECT_FALSE(fetch(*remote, {1}));
  EXPECT_LT(Clock::now() - begin, 30s);
  stop.join();
}

}  // namespace
}  // namespace cedar::actors
