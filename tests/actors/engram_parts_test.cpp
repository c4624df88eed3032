// The parts of the Engram service that need no wire.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>

#include "actors/engram_cache.h"
#include "actors/engram_replicas.h"
#include "actors/engram_wire.h"

namespace cedar::actors {
namespace {

using testing::ElementsAre;
using namespace std::chrono_literals;

TEST(EngramWire, AQuestionArrives) {
  const std::vector<int64_t> rows{0, 7, int64_t{1} << 40};
  const auto query = decode_engram_query(encode_engram_query(14, rows));
  ASSERT_TRUE(query);
  EXPECT_EQ(query->layer, 14);
  EXPECT_EQ(query->rows, rows);
  EXPECT_TRUE(decode_engram_query(encode_engram_query(1, {})));
}

TEST(EngramWire, AnythingElseIsRefused) {
  const auto good = encode_engram_query(1, std::vector<int64_t>{1, 2, 3});
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(decode_engram_query(std::span(good).first(length))) << length;
  }
  auto long_one = good;
  long_one.push_back({});
  EXPECT_FALSE(decode_engram_query(long_one));
  EXPECT_FALSE(
      decode_engram_query(encode_engram_query(1, std::vector<int64_t>(kMaxEngramRows + 1))));
}

class CacheTest : public testing::Test {
 protected:
  static constexpr int64_t kRowBytes = 33;
  static constexpr int64_t kCost = kRowBytes + EngramCache::kOverheadBytes;

  static std::vector<uint8_t> bytes_of(LayerId layer, int64_t row) {
    std::vector<uint8_t> bytes(kRowBytes);
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<uint8_t>(row * 31 + layer * 7 + static_cast<int64_t>(i));
    }
    return bytes;
  }
  static void insert(EngramCache& cache, int64_t row, LayerId layer = 1) {
    cache.insert(layer, row, bytes_of(layer, row).data());
  }
  static bool has(EngramCache& cache, int64_t row, LayerId layer = 1) {
    const uint8_t* found = cache.find(layer, row);
    if (found != nullptr) {
      EXPECT_EQ(std::memcmp(found, bytes_of(layer, row).data(), kRowBytes), 0) << row;
    }
    return found != nullptr;
  }
};

TEST_F(CacheTest, HoldsWhatFitsAndNoMore) {
  EngramCache cache(5 * kCost + kCost - 1, kRowBytes);
  EXPECT_EQ(cache.capacity_rows(), 5);
  for (int64_t row = 0; row < 20; ++row) insert(cache, row);
  EXPECT_EQ(cache.rows(), 5);
  int here = 0;
  for (int64_t row = 0; row < 20; ++row) here += has(cache, row) ? 1 : 0;
  EXPECT_EQ(here, 5);
  EngramCache none(kCost - 1, kRowBytes);
  insert(none, 1);
  EXPECT_FALSE(has(none, 1));
}

TEST_F(CacheTest, WhatWasFoundSinceTheHandPassedStays) {
  EngramCache cache(4 * kCost, kRowBytes);
  for (int64_t row = 0; row < 4; ++row) insert(cache, row);
  EXPECT_TRUE(has(cache, 0));
  EXPECT_TRUE(has(cache, 2));
  insert(cache, 10);
  insert(cache, 11);
  EXPECT_TRUE(has(cache, 0));
  EXPECT_FALSE(has(cache, 1));
  EXPECT_TRUE(has(cache, 2));
  EXPECT_FALSE(has(cache, 3));
  EXPECT_TRUE(has(cache, 10));
  EXPECT_TRUE(has(cache, 11));
}

TEST_F(CacheTest, RowsOfLayersAreDifferentAndStayAcrossSlabs) {
  EngramCache cache(5000 * kCost, kRowBytes);
  for (int64_t row = 0; row < 2500; ++row) {
    insert(cache, row, 1);
    insert(cache, row, 14);
    insert(cache, row, 14);  // again: nothing happens
  }
  EXPECT_EQ(cache.rows(), 5000);
  for (int64_t row = 0; row < 2500; ++row) {
    EXPECT_TRUE(has(cache, row, 1));
    EXPECT_TRUE(has(cache, row, 14));
  }
}

TEST_F(CacheTest, AHotSetSurvivesAStreamOfOthers) {
  EngramCache cache(200 * kCost, kRowBytes);
  std::mt19937 random(3);
  int64_t cold = 1000, hits = 0, asked = 0;
  for (int i = 0; i < 20000; ++i) {
    const int64_t row = i % 2 == 0 ? static_cast<int64_t>(random() % 50) : cold++;
    if (row < 50) {
      ++asked;
      hits += has(cache, row) ? 1 : 0;
    }
    insert(cache, row);
  }
  EXPECT_GT(static_cast<double>(hits), 0.95 * static_cast<double>(asked));
}

class ReplicasTest : public testing::Test {
 protected:
  static ServiceProvider provider(uint32_t node, int32_t shard, int32_t shards,
                                  uint64_t generation = 1) {
    return {"n" + std::to_string(node),
            {"127.0.0.1", 7000, node, generation},
            {ServiceRole::engram, shard, shards, ""}};
  }
  static transport::NodeIdentity identity(uint32_t node) { return {NodeId(node), 1}; }
  const transport::TimePoint now_ = transport::Clock::now();

  /// The next `count` choices, each for a question of its own.
  std::vector<uint32_t> turns(EngramReplicas& replicas, int count, int32_t shard = 0) const {
    std::vector<uint32_t> nodes;
    for (int i = 0; i < count; ++i) nodes.push_back(replicas.next(shard, {}, now_)->endpoint.node);
    return nodes;
  }
};

TEST_F(ReplicasTest, TakeTurns) {
  EngramReplicas replicas;
  EXPECT_EQ(replicas.shards(), 0);
  replicas.update({provider(1, 0, 2), provider(2, 1, 2), provider(3, 0, 2)});
  EXPECT_EQ(replicas.shards(), 2);
  EXPECT_EQ(replicas.replicas(0), 2u);
  EXPECT_THAT(turns(replicas, 4), ElementsAre(1, 3, 1, 3));
  EXPECT_THAT(turns(replicas, 2, 1), ElementsAre(2, 2));
}

TEST_F(ReplicasTest, OneThatFailedComesLastForAWhile) {
  EngramReplicas replicas;
  replicas.update({provider(1, 0, 1), provider(2, 0, 1)});
  replicas.failed(identity(1), now_);
  EXPECT_THAT(turns(replicas, 3), ElementsAre(2, 2, 2));
  const auto last = replicas.next(0, {identity(2)}, now_);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->endpoint.node, 1u);
  EXPECT_FALSE(replicas.next(0, {identity(2), identity(1)}, now_));
  const auto later = now_ + EngramReplicas::kPassedOver + 1ms;
  std::set<uint32_t> both;
  for (int i = 0; i < 2; ++i) both.insert(replicas.next(0, {}, later)->endpoint.node);
  EXPECT_EQ(both.size(), 2u);
  replicas.failed(identity(1), now_);
  replicas.succeeded(identity(1));
  EXPECT_THAT(turns(replicas, 2), testing::UnorderedElementsAre(1, 2));
}

TEST_F(ReplicasTest, OfTwoNumbersOfShardsTheCompleteOneCounts) {
  EngramReplicas replicas;
  replicas.update({provider(1, 0, 1), provider(2, 0, 3), provider(3, 1, 3)});
  EXPECT_EQ(replicas.shards(), 1);
  replicas.update({provider(1, 0, 2), provider(2, 0, 3), provider(3, 1, 3), provider(4, 2, 3)});
  EXPECT_EQ(replicas.shards(), 3);
  replicas.update({provider(1, 1, 2)});
  EXPECT_EQ(replicas.shards(), 2);
  EXPECT_EQ(replicas.replicas(0), 0u);
  EXPECT_FALSE(replicas.next(0, {}, now_));
  // What makes no sense is left out.
  replicas.update(
      {provider(1, 2, 2), provider(2, -1, 2), provider(3, 0, 0), provider(4, 0, 2000000000)});
  EXPECT_EQ(replicas.shards(), 0);
}

}  // namespace
}  // namespace cedar::actors
