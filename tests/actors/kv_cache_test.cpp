// The cache actor between nodes: fetches what is offered, offers what is asked for, and lets go of it.

#include "actors/kv_cache.h"

#include <gtest/gtest.h>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/scoped_actor.hpp>

#include <cstring>

#include "actors/offers.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_directory.h"
#include "tests/transport/backends.h"

namespace cedar::actors {
namespace {

using namespace std::chrono_literals;
using test::eventually;

constexpr int64_t kBlock = 1000;

model::BlockKey key(int n) {
  model::BlockKey result;
  result.digest.fill(static_cast<uint8_t>(n));
  return result;
}
std::vector<model::BlockKey> keys(int first, int end) {
  std::vector<model::BlockKey> result;
  for (int n = first; n < end; ++n) result.push_back(key(n));
  return result;
}

class KvCacheTest : public testing::TestWithParam<test::TransportBackend> {
 protected:
  KvCacheTest() {
    stage_ = network_.add(options(1));
    other_ = network_.add(options(2));
    plane_ = make_data_plane(*other_.transport, "127.0.0.1");
    cache_ = spawn(10 * Buffer::kAlignment * 16);
    exported_ = *stage_.transport->allocate(16 * kBlock);
    for (int i = 0; i < 16; ++i) std::memset(exported_.memory.data + i * kBlock, i, kBlock);
  }
  ~KvCacheTest() override {
    end(cache_);
    cache_ = KvCacheActor{};
    system_.await_all_actors_done();
    stage_.transport->shutdown();
    other_.transport->shutdown();
  }
  transport::TransportOptions options(uint32_t node) {
    transport::TransportOptions o = network_.options(node);
    o.ping_interval_ms = 100;
    o.ping_timeout_ms = 1000;
    return o;
  }
  KvCacheActor spawn(int64_t capacity) {
    CacheOptions options;
    options.bytes = capacity;
    return spawn(options);
  }
  KvCacheActor spawn(const CacheOptions& options) {
    return system_.spawn<KvCache, caf::detached>(KvCacheSetup{options, kBlock, plane_, board_});
  }
  CacheOptions disk_options(int64_t blocks) {
    CacheOptions options;
    options.bytes = blocks * 1024;  // slots are aligned
    options.directory = directory_.file("blocks");
    options.disk_bytes = 1 << 20;
    options.disk_retry = 50ms;
    options.identity = "test";
    return options;
  }
  void wait_for_end() {
    end(cache_);
    caf::scoped_actor self(system_);
    self->wait_for(cache_);
  }
  /// One with room for `blocks` in memory and a disk behind it, instead of the one that is there.
  void with_disk(int64_t blocks) {
    wait_for_end();
    cache_ = spawn(disk_options(blocks));
    ASSERT_TRUE(eventually([&] { return usage().disk_capacity_bytes > 0; }));
  }
  void store(int first, int end) {
    const CacheUsage before = usage();
    caf::anon_send(cache_, blocks(first, end));
    ASSERT_TRUE(eventually(
        [&] { return usage().disk_written_blocks == before.disk_written_blocks + end - first; }));
  }
  /// Breaks the value of a block on disk, wherever it lies.
  void damage(int block) {
    int broken = 0;
    for (const auto& file : std::filesystem::directory_iterator(directory_.file("blocks"))) {
      std::string bytes = test::read_file(file.path());
      // The key lies in the header of its slot, 64 bytes in all; in a footer there is no value behind it.
      const std::string name(32, static_cast<char>(block));
      const size_t at = bytes.find(std::string("CLST") + name);
      if (at == std::string::npos) continue;
      bytes[at + 64 + 500] ^= 1;
      std::ofstream(file.path(), std::ios::binary) << bytes;
      ++broken;
    }
    ASSERT_EQ(broken, 1);
  }
  void end(const KvCacheActor& cache) {
    caf::anon_send_exit(caf::actor_cast<caf::actor>(cache), caf::exit_reason::user_shutdown);
  }
  /// Blocks [first, end) of the exported memory, behind key(first - 1).
  StoreBlocks blocks(int first, int end, std::chrono::milliseconds lease = 20000ms) {
    transport::OfferRequest request;
    request.region = exported_.id;
    for (int i = first; i < end; ++i) {
      request.ranges.push_back({static_cast<uint64_t>(i * kBlock), kBlock, {}});
    }
    request.lease_deadline = transport::Clock::now() + lease;
    const auto descriptor = stage_.transport->offer(std::move(request));
    EXPECT_TRUE(descriptor.has_value());
    return {first, keys(first - 1, end),
            make_offer(*descriptor, make_data_plane(*stage_.transport, "127.0.0.1").endpoint)};
  }
  /// A state behind block `block`, whose bytes are those of block `content` of the exported memory.
  StoreWindows windows(int block, int content) {
    return {key(block), block * 128, blocks(content, content + 1).blocks};
  }
  CacheUsage usage() {
    CacheUsage result;
    caf::scoped_actor self(system_);
    self->request(cache_, 5s, UsageAtom::value)
        .receive([&](const CacheUsage& u) { result = u; }, [](const caf::error&) { FAIL(); });
    return result;
  }
  PrefixLease lookup(caf::scoped_actor& self, const std::vector<model::BlockKey>& wanted,
                     std::chrono::milliseconds remaining = 20000ms) {
    PrefixLease lease;
    self->request(cache_, 5s, LookupPrefix{wanted, remaining})
        .receive([&](const PrefixLease& l) { lease = l; }, [](const caf::error&) { FAIL(); });
    return lease;
  }
  /// The first byte of each range, as a stage on the other node fetches them.
  std::vector<int> fetch(const Offer& offer) {
    auto descriptor = descriptor_of(offer);
    EXPECT_TRUE(descriptor.has_value());
    std::promise<Status> connected;
    stage_.transport->connect(
        {offer.owner.host, offer.owner.port}, descriptor->owner, transport::Clock::now() + 10s,
        [&](const auto& peer) { connected.set_value(peer ? Status{} : Status{peer.error()}); });
    EXPECT_TRUE(connected.get_future().get().has_value());
    const size_t count = descriptor->ranges.size();
    const auto target = *stage_.transport->allocate(count * kBlock);
    transport::PullRequest pull;
    pull.source = *descriptor;
    for (size_t i = 0; i < count; ++i) pull.target.push_back({target.id, i * kBlock});
    pull.deadline = transport::Clock::now() + 10s;
    std::promise<Status> done;
    EXPECT_TRUE(stage_.transport->pull(pull, [&](Status status) { done.set_value(status); }));
    const Status status = done.get_future().get();
    EXPECT_TRUE(status.has_value()) << status.error().message();
    std::vector<int> bytes;
    for (size_t i = 0; i < count; ++i) {
      bytes.push_back(static_cast<int>(target.memory.data[i * kBlock]));
    }
    return bytes;
  }

  test::Network network_{GetParam()};
  test::Network::Node stage_, other_;
  DataPlane plane_;
  std::shared_ptr<LoadBoard> board_ = std::make_shared<LoadBoard>();
  transport::Region exported_;
  caf::actor_system_config config_;
  caf::actor_system system_{config_};
  test::TempDirectory directory_;
  KvCacheActor cache_;
};

TEST_P(KvCacheTest, KeepsWhatIsOfferedAndOffersItToTwoReaders) {
  caf::scoped_actor self(system_);
  EXPECT_EQ(lookup(self, keys(1, 5)).blocks, 0);
  self->send(cache_, blocks(1, 4));
  ASSERT_TRUE(eventually([&] { return usage().stored_blocks == 3; }));
  EXPECT_TRUE(eventually([&] { return stage_.transport->stats().leases_live == 0; }));
  const PrefixLease hit = lookup(self, keys(1, 6));
  ASSERT_EQ(hit.blocks, 3);
  EXPECT_EQ(usage().pinned_blocks, 3);
  EXPECT_EQ(fetch(hit.for_encoder), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(usage().pinned_blocks, 3);  // the other one has not read yet
  EXPECT_EQ(fetch(hit.for_decoder), (std::vector<int>{1, 2, 3}));
  EXPECT_TRUE(eventually([&] { return usage().leases == 0; }));
  EXPECT_EQ(usage().pinned_blocks, 0);
  EXPECT_EQ(usage().hit_blocks, 3);
  EXPECT_EQ(usage().lookups, 2);
  // What is here is not fetched again.
  self->send(cache_, blocks(1, 5));
  ASSERT_TRUE(eventually([&] { return usage().stored_blocks == 4; }));
  EXPECT_EQ(usage().bytes, 4 * kBlock);
  EXPECT_EQ(board_->cache_blocks, 4);
}

TEST_P(KvCacheTest, ALeaseEndsWhenItIsReleasedWhenItsOwnerDiesAndWithItsDeadline) {
  caf::scoped_actor self(system_);
  self->send(cache_, blocks(1, 3));
  ASSERT_TRUE(eventually([&] { return usage().blocks == 2; }));
  const PrefixLease released = lookup(self, keys(1, 3));
  self->send(cache_, ReleaseLease{released.lease});
  self->send(cache_, ReleaseLease{released.lease});  // already released: ignored
  self->send(cache_, ReleaseLease{LeaseId{4711}});
  EXPECT_TRUE(eventually([&] { return usage().leases == 0; }));
  {
    caf::scoped_actor owner(system_);
    lookup(owner, keys(1, 3));
    lookup(owner, keys(1, 2));
    EXPECT_EQ(usage().leases, 2);
  }
  EXPECT_TRUE(eventually([&] { return usage().leases == 0; }));
  lookup(self, keys(1, 3), 50ms);
  EXPECT_TRUE(eventually([&] { return usage().leases == 0; }));
  EXPECT_EQ(usage().pinned_blocks, 0);
  EXPECT_EQ(other_.transport->stats().leases_live, 0U);
}

TEST_P(KvCacheTest, WhatIsReadIsNotEvicted) {
  end(cache_);
  cache_ = spawn(3 * 1024);  // three blocks
  caf::scoped_actor self(system_);
  self->send(cache_, blocks(1, 4));
  ASSERT_TRUE(eventually([&] { return usage().blocks == 3; }));
  const PrefixLease hit = lookup(self, keys(1, 3));
  ASSERT_EQ(hit.blocks, 2);
  // Two blocks of another sequence: one finds the place of block 3, the other none.
  self->send(cache_, blocks(11, 13));
  ASSERT_TRUE(eventually([&] { return usage().dropped_blocks == 1; }));
  EXPECT_EQ(fetch(hit.for_decoder), (std::vector<int>{1, 2}));
  self->send(cache_, ReleaseLease{hit.lease});
  EXPECT_TRUE(eventually([&] { return usage().leases == 0; }));
  EXPECT_EQ(usage().evicted_blocks, 1);
}

TEST_P(KvCacheTest, OffersThatAreNoneAreDropped) {
  caf::scoped_actor self(system_);
  StoreBlocks wrong = blocks(1, 3);
  wrong.blocks.descriptor.resize(20);
  self->send(cache_, wrong);
  StoreBlocks foreign = blocks(1, 3);
  foreign.blocks.owner.node = 77;
  self->send(cache_, foreign);
  StoreBlocks nothing = blocks(1, 3);
  nothing.chain.clear();
  self->send(cache_, nothing);
  StoreBlocks taken_back = blocks(5, 7);
  stage_.transport->revoke(descriptor_of(taken_back.blocks)->lease);
  self->send(cache_, taken_back);
  self->send(cache_, blocks(1, 2));
  EXPECT_TRUE(eventually([&] { return usage().blocks == 1; }));
  EXPECT_EQ(lookup(self, keys(5, 7)).blocks, 0);
}

TEST_P(KvCacheTest, WithoutMemoryItKeepsNothing) {
  end(cache_);
  cache_ = spawn(10);
  caf::scoped_actor self(system_);
  self->send(cache_, blocks(1, 3));
  EXPECT_TRUE(eventually([&] { return stage_.transport->stats().leases_live <= 1; }));
  EXPECT_EQ(lookup(self, keys(1, 3)).blocks, 0);
  EXPECT_EQ(usage().blocks, 0);
}

TEST_P(KvCacheTest, WhatWasOnDiskIsFoundAfterARestart) {
  caf::scoped_actor self(system_);
  with_disk(10);
  store(1, 6);
  EXPECT_EQ(usage().disk_blocks, 5);
  with_disk(10);
  EXPECT_EQ(usage().blocks, 0);
  const PrefixLease hit = lookup(self, keys(1, 9));
  ASSERT_EQ(hit.blocks, 5);
  EXPECT_EQ(hit.disk_blocks, 5);
  EXPECT_EQ(fetch(hit.for_encoder), (std::vector<int>{1, 2, 3, 4, 5}));
  EXPECT_EQ(fetch(hit.for_decoder), (std::vector<int>{1, 2, 3, 4, 5}));
  EXPECT_TRUE(eventually([&] { return usage().leases == 0; }));
  EXPECT_EQ(usage().pinned_blocks, 0);
  EXPECT_EQ(usage().disk_hit_blocks, 5);
  EXPECT_EQ(board_->cache_disk_hit_blocks, 5);
  EXPECT_EQ(board_->cache_disk_blocks, 5);
  // Now they are in memory.
  const PrefixLease again = lookup(self, keys(1, 9));
  EXPECT_EQ(again.blocks, 5);
  EXPECT_EQ(again.disk_blocks, 0);
  // Nothing is kept for those whose prefix differs.
  EXPECT_EQ(lookup(self, {key(9), key(2)}).blocks, 0);
}

// Some of a prefix in memory, some on disk, in any order.
TEST_P(KvCacheTest, APrefixMayLieInBothTiers) {
  caf::scoped_actor self(system_);
  with_disk(4);
  store(1, 5);
  // Two of another chain push the deepest two out of memory.
  self->send(cache_, ReleaseLease{lookup(self, keys(1, 3)).lease});
  store(11, 13);
  ASSERT_EQ(usage().evicted_blocks, 2);
  const PrefixLease hit = lookup(self, keys(1, 6));
  ASSERT_EQ(hit.blocks, 4);
  EXPECT_EQ(hit.disk_blocks, 2);
  EXPECT_EQ(fetch(hit.for_encoder), (std::vector<int>{1, 2, 3, 4}));
  self->send(cache_, ReleaseLease{hit.lease});

  // The beginning on disk only, its continuation in memory.
  with_disk(4);
  self->send(cache_, blocks(3, 5));
  ASSERT_TRUE(eventually([&] { return usage().blocks == 2; }));
  const PrefixLease behind = lookup(self, keys(1, 6));
  ASSERT_EQ(behind.blocks, 4);
  EXPECT_EQ(behind.disk_blocks, 2);
  EXPECT_EQ(fetch(behind.for_decoder), (std::vector<int>{1, 2, 3, 4}));
}

TEST_P(KvCacheTest, ADamagedBlockEndsTheHitAndIsReplaced) {
  caf::scoped_actor self(system_);
  with_disk(10);
  store(1, 6);
  wait_for_end();
  damage(3);
  with_disk(10);
  const PrefixLease hit = lookup(self, keys(1, 6));
  ASSERT_EQ(hit.blocks, 2);
  EXPECT_EQ(hit.disk_blocks, 2);
  EXPECT_EQ(fetch(hit.for_encoder), (std::vector<int>{1, 2}));
  EXPECT_EQ(usage().disk_errors, 1);
  self->send(cache_, ReleaseLease{hit.lease});
  EXPECT_TRUE(eventually([&] { return usage().pinned_blocks == 0; }));
  // Computed again, it is whole again, on disk as well.
  store(3, 4);
  with_disk(10);
  EXPECT_EQ(lookup(self, keys(1, 6)).blocks, 5);
  EXPECT_EQ(usage().disk_errors, 0);
}

TEST_P(KvCacheTest, WithoutRoomForAllTheHitIsShorter) {
  caf::scoped_actor self(system_);
  with_disk(10);
  store(1, 9);
  store(11, 13);
  with_disk(4);
  const PrefixLease held = lookup(self, keys(11, 13));
  ASSERT_EQ(held.blocks, 2);
  const PrefixLease hit = lookup(self, keys(1, 9));
  ASSERT_EQ(hit.blocks, 2);
  EXPECT_EQ(fetch(hit.for_encoder), (std::vector<int>{1, 2}));
  EXPECT_EQ(fetch(held.for_encoder), (std::vector<int>{11, 12}));
  // Nothing is left for this one.
  EXPECT_EQ(lookup(self, keys(3, 5)).blocks, 0);
  for (const PrefixLease& lease : {held, hit}) self->send(cache_, ReleaseLease{lease.lease});
  EXPECT_TRUE(eventually([&] { return usage().pinned_blocks == 0; }));
  EXPECT_EQ(lookup(self, keys(1, 9)).blocks, 4);
}

TEST_P(KvCacheTest, LookupsOfOnePrefixShareItsReads) {
  caf::scoped_actor self(system_);
  with_disk(8);
  store(1, 9);
  with_disk(8);
  std::vector<std::unique_ptr<caf::scoped_actor>> askers;
  for (int i = 0; i < 6; ++i) {
    askers.push_back(std::make_unique<caf::scoped_actor>(system_));
    (*askers.back())->send(cache_, LookupPrefix{keys(1, 9), 20000ms});
  }
  // One that dies meanwhile changes nothing for the others.
  askers.front().reset();
  EXPECT_TRUE(eventually([&] { return usage().lookups == 6 && usage().leases >= 5; }));
  EXPECT_EQ(lookup(self, keys(1, 9)).blocks, 8);
  EXPECT_EQ(usage().blocks, 8);
  EXPECT_EQ(usage().pinned_blocks, 8);
  askers.clear();
  EXPECT_TRUE(eventually([&] { return usage().leases == 1; }));
}

// Another cache has the directory, or nobody can have it: memory alone, and the disk as soon as it can be had.
TEST_P(KvCacheTest, ADirectoryThatCannotBeHadIsDoneWithout) {
  caf::scoped_actor self(system_);
  CacheOptions options = disk_options(10);
  with_disk(10);
  const KvCacheActor owner = std::exchange(cache_, spawn(options));
  self->send(cache_, blocks(1, 4));
  EXPECT_TRUE(eventually([&] { return usage().blocks == 3; }));
  EXPECT_EQ(lookup(self, keys(1, 4)).blocks, 3);
  EXPECT_EQ(usage().disk_capacity_bytes, 0);
  EXPECT_GE(usage().disk_errors, 1);
  end(owner);
  EXPECT_TRUE(eventually([&] { return usage().disk_capacity_bytes == 1 << 20; }, 30s));
  // A later hit brings what it had in memory to the disk.
  EXPECT_EQ(lookup(self, keys(1, 4)).blocks, 3);
  EXPECT_TRUE(eventually([&] { return usage().disk_written_blocks == 3; }));

  end(cache_);
  options.directory = directory_.write("a_file", "");
  cache_ = spawn(options);
  EXPECT_TRUE(eventually([&] { return usage().disk_errors >= 1; }));
  self->send(cache_, blocks(1, 4));
  EXPECT_TRUE(eventually([&] { return usage().blocks == 3; }));
}

// As a full one does: that is not a disk that is merely behind.
TEST_P(KvCacheTest, ADiskThatRefusesWritesCountsAsFailing) {
  with_disk(10);
  // There can be no first segment.
  directory_.write("blocks/segment-0000000000000001.seg", "");
  caf::anon_send(cache_, blocks(1, 4));
  EXPECT_TRUE(eventually([&] { return usage().disk_errors >= 1; }));
  EXPECT_EQ(usage().blocks, 3);
  EXPECT_EQ(usage().disk_written_blocks, 0);
}

// What blocks of another model or layout are does not matter: they go.
TEST_P(KvCacheTest, BlocksOfAnotherIdentityAreNotFound) {
  caf::scoped_actor self(system_);
  with_disk(10);
  store(1, 4);
  wait_for_end();
  CacheOptions options = disk_options(10);
  options.identity = "other";
  cache_ = spawn(options);
  ASSERT_TRUE(eventually([&] { return usage().disk_capacity_bytes > 0; }));
  EXPECT_EQ(usage().disk_blocks, 0);
  EXPECT_EQ(lookup(self, keys(1, 4)).blocks, 0);
}

// Windows: any bytes for the cache, found by the deepest block of what a lookup finds.
TEST_P(KvCacheTest, WindowsOfTheDeepestBlockThatHasSomeAreOffered) {
  caf::scoped_actor self(system_);
  self->send(cache_, blocks(1, 6));
  self->send(cache_, windows(2, 12));
  self->send(cache_, windows(4, 14));
  self->send(cache_, windows(9, 15));  // of another conversation
  ASSERT_TRUE(eventually([&] { return usage().windows == 3 && usage().blocks == 5; }));
  EXPECT_TRUE(eventually([&] { return stage_.transport->stats().leases_live == 0; }));
  const PrefixLease hit = lookup(self, keys(1, 9));
  EXPECT_EQ(hit.blocks, 5);
  ASSERT_EQ(hit.windows_at, 4 * 128);
  EXPECT_EQ(fetch(hit.windows), (std::vector<int>{14}));
  const PrefixLease shorter = lookup(self, keys(1, 4));
  ASSERT_EQ(shorter.windows_at, 2 * 128);
  EXPECT_EQ(fetch(shorter.windows), (std::vector<int>{12}));
  EXPECT_EQ(lookup(self, keys(1, 2)).windows_at, 0);
  EXPECT_EQ(usage().window_hits, 2);
  EXPECT_EQ(usage().window_lookups, 3);
  EXPECT_EQ(board_->cache_windows, 3);
  // They stay while they are offered, and are gone with the process.
  with_disk(10);
  EXPECT_EQ(usage().windows, 0);
}

TEST_P(KvCacheTest, TheNextTurnsWindowsReplaceThoseItBeganWith) {
  CacheOptions options;
  options.bytes = 10240;
  options.window_bytes = 3 * 1024;  // of three states
  end(cache_);
  cache_ = spawn(options);
  caf::scoped_actor self(system_);
  self->send(cache_, blocks(1, 6));
  self->send(cache_, windows(9, 11));
  ASSERT_TRUE(eventually([&] { return usage().windows == 1 && usage().blocks == 5; }));
  self->send(cache_, windows(2, 12));
  ASSERT_TRUE(eventually([&] { return usage().windows == 2; }));
  {
    // A turn that finds block 2's, and brings those of block 5.
    caf::scoped_actor turn(system_);
    const PrefixLease hit = lookup(turn, keys(1, 6));
    ASSERT_EQ(hit.windows_at, 2 * 128);
    turn->send(cache_, ReleaseLease{hit.lease});
    ASSERT_TRUE(eventually([&] { return usage().leases == 0; }));
    turn->send(cache_, windows(5, 15));
    ASSERT_TRUE(eventually([&] { return usage().windows == 3; }));
  }
  // Another state finds room: that of block 2 has gone, which was used after that of block 9.
  self->send(cache_, windows(10, 14));
  ASSERT_TRUE(eventually([&] { return usage().windows_evicted == 1 && usage().windows == 3; }));
  EXPECT_EQ(lookup(self, keys(1, 4)).windows_at, 0);
  EXPECT_EQ(lookup(self, keys(1, 6)).windows_at, 5 * 128);
}

TEST_P(KvCacheTest, WindowsAreLetGoAfterAWhile) {
  CacheOptions options;
  options.bytes = 10240;
  options.window_ttl = 1s;
  end(cache_);
  cache_ = spawn(options);
  caf::scoped_actor self(system_);
  self->send(cache_, blocks(1, 3));
  self->send(cache_, windows(2, 12));
  EXPECT_TRUE(eventually([&] { return usage().windows_expired == 1; }, 30s));
  EXPECT_EQ(usage().window_bytes, 0);
  EXPECT_EQ(lookup(self, keys(1, 3)).windows_at, 0);
}

TEST_P(KvCacheTest, WindowsThatAreNoneAndACacheThatKeepsNone) {
  caf::scoped_actor self(system_);
  StoreWindows wrong = windows(1, 1);
  wrong.windows.descriptor.resize(20);
  self->send(cache_, wrong);
  self->send(cache_, StoreWindows{key(1), 128, blocks(1, 3).blocks});  // two ranges
  StoreWindows nowhere = windows(1, 1);
  nowhere.windows_at = 0;
  self->send(cache_, nowhere);
  StoreWindows taken_back = windows(3, 3);
  stage_.transport->revoke(descriptor_of(taken_back.windows)->lease);
  self->send(cache_, taken_back);
  self->send(cache_, windows(2, 2));
  EXPECT_TRUE(eventually([&] { return usage().windows == 1 && usage().window_bytes == 1024; }));
  end(cache_);
  CacheOptions options;
  options.bytes = 10240;
  options.window_bytes = 0;
  cache_ = spawn(options);
  self->send(cache_, windows(2, 2));
  self->send(cache_, blocks(1, 3));
  EXPECT_TRUE(eventually([&] { return usage().blocks == 2; }));
  EXPECT_EQ(usage().windows, 0);
  EXPECT_EQ(lookup(self, keys(1, 3)).windows_at, 0);
}

INSTANTIATE_TEST_SUITE_P(Transports, KvCacheTest, testing::ValuesIn(test::transport_backends()),
                         [](const auto& backend) { return backend.param.name; });

}  // namespace
}  // namespace cedar::actors
