#include "engine/kv_block_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace cedar::engine {
namespace {

TEST(KvBlockPool, GivesEachPageOnceAndTakesItBack) {
  auto pool = KvBlockPool::create(Device{}, 4, 64);
  ASSERT_TRUE(pool.has_value());
  auto first = pool->allocate(3);
  ASSERT_TRUE(first.has_value());
  std::set<BlockId> distinct(first->begin(), first->end());
  EXPECT_EQ(distinct.size(), 3U);
  EXPECT_EQ(pool->free(), 1);
  for (BlockId block : *first) pool->release(block);
  EXPECT_EQ(pool->free(), 4);
}

TEST(KvBlockPool, AllOrNothing) {
  auto pool = KvBlockPool::create(Device{}, 4, 64);
  ASSERT_TRUE(pool.has_value());
  auto too_many = pool->allocate(5);
  ASSERT_FALSE(too_many.has_value());
  EXPECT_EQ(too_many.error().code, Errc::overloaded);
  EXPECT_EQ(too_many.error().context, "KV pool: 5 blocks needed, 4 of 4 free");
  EXPECT_EQ(pool->free(), 4);
}

TEST(KvBlockPool, ASharedPageIsFreeOnlyAfterItsLastHolder) {
  auto pool = KvBlockPool::create(Device{}, 1, 64);
  ASSERT_TRUE(pool.has_value());
  const BlockId block = pool->allocate(1)->front();
  pool->retain(block);
  pool->release(block);
  EXPECT_EQ(pool->free(), 0);
  pool->release(block);
  EXPECT_EQ(pool->free(), 1);
}

TEST(KvBlockPoolDeathTest, ReleasingAFreePageIsABug) {
  auto pool = KvBlockPool::create(Device{}, 1, 64);
  ASSERT_TRUE(pool.has_value());
  EXPECT_DEATH(pool->release(BlockId(0)), "invariant broken");
}

}  // namespace
}  // namespace cedar::engine
