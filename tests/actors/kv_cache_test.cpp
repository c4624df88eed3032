#include "actors/kv_cache.h"

#include <gtest/gtest.h>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/scoped_actor.hpp>

#include "actors/block_map.h"
#include "tests/support/collecting_sink.h"

namespace cedar::actors {
namespace {

using namespace std::chrono_literals;

model::BlockKey key(uint8_t n) {
  model::BlockKey result;
  result.digest.fill(n);
  return result;
}

BlockBytes bytes(size_t count, uint8_t value = 0) {
  return std::make_shared<const std::vector<std::byte>>(count, static_cast<std::byte>(value));
}

TEST(BlockMap, LeastRecentlyUsedGoesFirst) {
  BlockMap map(300);
  EXPECT_TRUE(map.store(key(1), bytes(100)));
  EXPECT_TRUE(map.store(key(2), bytes(100)));
  EXPECT_TRUE(map.store(key(3), bytes(100)));
  map.pin_prefix(std::vector{key(1)});
  map.unpin(key(1));  // now the most recently used
  EXPECT_TRUE(map.store(key(4), bytes(100)));
  EXPECT_TRUE(map.pin_prefix(std::vector{key(2)}).empty());
  EXPECT_EQ(map.pin_prefix(std::vector{key(1)}).size(), 1U);
  EXPECT_EQ(map.bytes(), 300);
}

TEST(BlockMap, PinnedBlocksAreNeverDropped) {
  BlockMap map(200);
  EXPECT_TRUE(map.store(key(1), bytes(100)));
  EXPECT_TRUE(map.store(key(2), bytes(100)));
  EXPECT_EQ(map.pin_prefix(std::vector{key(1), key(2), key(3)}).size(), 2U);
  EXPECT_FALSE(map.store(key(3), bytes(100)));
  EXPECT_FALSE(map.store(key(4), bytes(201)));
  map.unpin(key(2));
  EXPECT_TRUE(map.store(key(3), bytes(100)));
  EXPECT_EQ(map.pinned_blocks(), 1);
  EXPECT_EQ(map.blocks(), 2);
}

class KvCacheTest : public testing::Test {
 protected:
  caf::actor_system_config config_;
  caf::actor_system system_{config_};
  KvCacheActor cache_ = system_.spawn<KvCache>(1000);

  CacheUsage usage() {
    CacheUsage result;
    caf::scoped_actor self(system_);
    self->request(cache_, 2s, UsageAtom::value)
        .receive([&](const CacheUsage& u) { result = u; }, [](const caf::error&) { FAIL(); });
    return result;
  }
  static PrefixLease lookup(caf::scoped_actor& self, const KvCacheActor& cache,
                            std::vector<model::BlockKey> keys) {
    PrefixLease lease;
    self->request(cache, 2s, LookupPrefix{RequestId{1}, std::move(keys)})
        .receive([&](const PrefixLease& l) { lease = l; }, [](const caf::error&) { FAIL(); });
    return lease;
  }
};

TEST_F(KvCacheTest, AnEmptyCacheLeasesNothing) {
  caf::scoped_actor self(system_);
  EXPECT_TRUE(lookup(self, cache_, {key(1)}).blocks.empty());
}

TEST_F(KvCacheTest, ALeasePinsTheLongestPrefixUntilItIsReleased) {
  caf::scoped_actor self(system_);
  self->send(cache_, StoreBlock{key(1), bytes(400, 1)});
  self->send(cache_, StoreBlock{key(2), bytes(400, 2)});
  const PrefixLease lease = lookup(self, cache_, {key(1), key(2), key(3)});
  ASSERT_EQ(lease.blocks.size(), 2U);
  EXPECT_EQ((*lease.blocks[1])[0], static_cast<std::byte>(2));
  self->send(cache_, StoreBlock{key(4), bytes(400)});  // no room beside the pinned ones
  EXPECT_EQ(usage().blocks, 2);
  EXPECT_EQ(usage().pinned_blocks, 2);
  self->send(cache_, ReleaseLease{lease.lease});
  self->send(cache_, ReleaseLease{lease.lease});  // already released: ignored
  EXPECT_EQ(usage().pinned_blocks, 0);
  EXPECT_EQ(usage().leases, 0);
  self->send(cache_, StoreBlock{key(4), bytes(400)});
  EXPECT_TRUE(lookup(self, cache_, {key(1)}).blocks.empty());
  EXPECT_EQ(lookup(self, cache_, {key(4)}).blocks.size(), 1U);
}

TEST_F(KvCacheTest, TheLeasesOfADeadOwnerAreReleased) {
  {
    caf::scoped_actor owner(system_);
    owner->send(cache_, StoreBlock{key(1), bytes(10)});
    lookup(owner, cache_, {key(1)});
    lookup(owner, cache_, {key(1)});
    EXPECT_EQ(usage().leases, 2);
  }
  EXPECT_TRUE(test::eventually([&] { return usage().leases == 0; }));
  EXPECT_EQ(usage().pinned_blocks, 0);
}

}  // namespace
}  // namespace cedar::actors
