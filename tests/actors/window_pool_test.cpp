// Which states stay, and where.

#include "actors/window_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace cedar::actors {
namespace {

using namespace std::chrono_literals;

model::BlockKey key(int n) {
  model::BlockKey result;
  result.digest[0] = static_cast<uint8_t>(n);
  result.digest[1] = static_cast<uint8_t>(n >> 8);
  return result;
}

class WindowPoolTest : public testing::Test {
 protected:
  bool store(int n, int64_t bytes) {
    const auto place = pool_.store(key(n), bytes, 128 * n, now_);
    if (!place) return false;
    EXPECT_EQ(place->bytes, bytes);
    EXPECT_FALSE(pool_.has(key(n)));
    pool_.finish(key(n));
    return true;
  }
  void use(int n) {
    pool_.pin(key(n), now_);
    pool_.unpin(key(n));
  }
  std::set<int> present() const {
    std::set<int> result;
    for (int n = 0; n < 300; ++n) {
      if (pool_.has(key(n))) result.insert(n);
    }
    return result;
  }

  WindowPool pool_{1024, 60s};
  WindowPool::TimePoint now_{};
};

TEST_F(WindowPoolTest, TheOneNotUsedForLongestGoesFirst) {
  for (const int n : {1, 2, 3, 4}) EXPECT_TRUE(store(n, 256));
  use(1);
  EXPECT_TRUE(store(5, 250));
  EXPECT_EQ(present(), (std::set<int>{1, 3, 4, 5}));
  EXPECT_EQ(pool_.evicted(), 1);
  EXPECT_EQ(pool_.pin(key(5), now_).tokens, 5 * 128);
  EXPECT_EQ(pool_.bytes(), 1024);
}

TEST_F(WindowPoolTest, OneThatWasReplacedGoesBeforeAll) {
  for (const int n : {1, 2, 3, 4}) store(n, 256);
  pool_.replaced(key(4));
  pool_.replaced(key(77));
  store(5, 256);
  EXPECT_EQ(present(), (std::set<int>{1, 2, 3, 5}));
}

TEST_F(WindowPoolTest, WhatIsReadOrWrittenStays) {
  for (const int n : {1, 2, 3}) store(n, 256);
  pool_.pin(key(1), now_);
  pool_.pin(key(1), now_);
  ASSERT_TRUE(pool_.store(key(4), 256, 1, now_));  // being written
  EXPECT_FALSE(store(5, 1024));
  EXPECT_EQ(present(), (std::set<int>{1}));
  now_ += 61s;
  pool_.expire(now_);
  EXPECT_EQ(pool_.states(), 1);
  EXPECT_EQ(pool_.bytes(), 512);
  pool_.unpin(key(1));
  pool_.abandon(key(4));
  EXPECT_FALSE(store(5, 1024));
  pool_.unpin(key(1));
  EXPECT_TRUE(store(5, 1024));
}

TEST_F(WindowPoolTest, AStateLivesOnWhileItIsUsed) {
  store(1, 100);
  store(2, 100);
  now_ += 40s;
  use(1);
  now_ += 30s;
  pool_.expire(now_);
  EXPECT_EQ(present(), (std::set<int>{1}));
  EXPECT_EQ(pool_.expired(), 1);
  now_ += 30s;
  pool_.expire(now_);
  EXPECT_EQ(pool_.states(), 0);
  EXPECT_EQ(pool_.bytes(), 0);
}

TEST_F(WindowPoolTest, OddSizesAndNone) {
  EXPECT_FALSE(store(1, 0));
  EXPECT_FALSE(store(1, 1025));
  EXPECT_TRUE(store(1, 1024));
  EXPECT_FALSE(store(1, 10));  // it is here
  WindowPool none(63, 60s);
  EXPECT_FALSE(none.store(key(1), 1, 1, now_));
}

// Places never overlap, and all room comes back.
TEST_F(WindowPoolTest, PlacesOfManySizes) {
  pool_ = WindowPool(1 << 16, 60s);
  std::mt19937 random(1);
  std::map<int, WindowPool::Place> places;
  for (int n = 0; n < 3000; ++n) {
    const int name = n % 300;
    const auto place = pool_.store(key(name), static_cast<int64_t>(random() % 6000) + 1, 1, now_);
    if (!place) continue;
    pool_.finish(key(name));
    places[name] = *place;
    for (const auto& [other, at] : places) {
      if (other == name || !pool_.has(key(other))) continue;
      EXPECT_TRUE(at.offset + at.bytes <= place->offset ||
                  place->offset + place->bytes <= at.offset);
    }
    EXPECT_LE(place->offset + place->bytes, 1 << 16);
  }
  EXPECT_GT(pool_.evicted(), 1000);
  now_ += 61s;
  pool_.expire(now_);
  EXPECT_EQ(pool_.bytes(), 0);
  EXPECT_TRUE(store(1, 1 << 16));
}

}  // namespace
}  // namespace cedar::actors
