#include "transport/part_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace cedar::transport {
namespace {

std::byte* at(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

TEST(PartPlan, JoinsSmallCutsLarge) {
  const std::vector<Piece> pieces = {
      {0, at(1000), 300}, {5000, at(9000), 300}, {9000, at(20'000), 2500}};
  const auto parts = plan_parts(pieces, 1000, 10);
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[0].pieces.size(), 3u);
  EXPECT_EQ(parts[0].bytes, 1000u);
  EXPECT_EQ(parts[1].bytes, 1000u);
  EXPECT_EQ(parts[3].bytes, 100u);
}

TEST(PartPlan, RangesThatTouchOnBothSidesAreOnePiece) {
  const std::vector<Piece> pieces = {
      {0, at(1000), 100}, {100, at(1100), 100}, {200, at(1300), 100}};
  const auto parts = plan_parts(pieces, 1000, 10);
  ASSERT_EQ(parts.size(), 1u);
  ASSERT_EQ(parts[0].pieces.size(), 2u);
  EXPECT_EQ(parts[0].pieces[0].bytes, 200u);
}

TEST(PartPlan, PieceLimit) {
  std::vector<Piece> pieces;
  for (uint64_t i = 0; i < 10; ++i) pieces.push_back({i * 100, at(1000 + i * 50), 10});
  const auto parts = plan_parts(pieces, 1000, 4);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[2].pieces.size(), 2u);
  EXPECT_TRUE(plan_parts({}, 1000, 4).empty());
}

TEST(PartPlan, RandomPlansCoverEveryByteOnceInOrder) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<Piece> pieces;
    uint64_t offset = 0, target = 1 << 20;
    for (size_t i = 0, n = 1 + random() % 40; i < n; ++i) {
      const uint64_t bytes = 1 + random() % 3000;
      pieces.push_back({offset, at(target), bytes});
      offset += bytes + random() % 2;
      target += bytes + random() % 2;
    }
    const uint64_t limit = 1 + random() % 4000;
    const uint32_t piece_limit = 1 + random() % 5;
    std::vector<std::pair<uint64_t, std::byte*>> wanted, got;
    for (const Piece& p : pieces)
      for (uint64_t i = 0; i < p.bytes; ++i) wanted.emplace_back(p.offset + i, p.target + i);
    for (const Part& part : plan_parts(pieces, limit, piece_limit)) {
      uint64_t sum = 0;
      for (const Piece& p : part.pieces) {
        sum += p.bytes;
        for (uint64_t i = 0; i < p.bytes; ++i) got.emplace_back(p.offset + i, p.target + i);
      }
      EXPECT_EQ(sum, part.bytes);
      EXPECT_LE(part.bytes, limit);
      EXPECT_LE(part.pieces.size(), piece_limit);
    }
    ASSERT_EQ(got, wanted);
  }
}

}  // namespace
}  // namespace cedar::transport
