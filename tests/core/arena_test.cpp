#include "core/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

namespace cedar {
namespace {

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % Buffer::kAlignment == 0; }

TEST(Arena, AllocationsAreAlignedAndDisjoint) {
  Arena arena(Device{}, 4096);
  std::vector<std::pair<char*, int64_t>> live;
  std::mt19937 rng(1);
  for (int i = 0; i < 200; ++i) {
    const int64_t bytes = std::uniform_int_distribution<int64_t>(0, 900)(rng);
    auto* p = static_cast<char*>(arena.allocate_bytes(bytes));
    ASSERT_TRUE(aligned(p)) << "allocation " << i << " of " << bytes << " bytes";
    std::memset(p, i & 0x7f, static_cast<size_t>(bytes));
    live.emplace_back(p, bytes);
  }
  // A later allocation that overlapped an earlier one would have overwritten its fill.
  for (size_t i = 0; i < live.size(); ++i) {
    const auto [p, bytes] = live[i];
    EXPECT_TRUE(std::all_of(p, p + bytes, [i](char c) { return c == static_cast<char>(i & 0x7f); }))
        << "allocation " << i;
  }
}

TEST(Arena, ZeroBytesStillGivesDistinctPointers) {
  Arena arena{Device{}};
  void* a = arena.allocate_bytes(0);
  void* b = arena.allocate_bytes(0);
  EXPECT_NE(a, nullptr);
  EXPECT_NE(a, b);
}

TEST(Arena, TypedAllocationCountsElements) {
  Arena arena(Device{}, 64);
  auto* doubles = arena.allocate<double>(100);
  std::fill(doubles, doubles + 100, 1.5);
  EXPECT_GE(arena.capacity_bytes(), 800);
}

TEST(Arena, AllocationLargerThanAChunkGetsItsOwn) {
  Arena arena(Device{}, 256);
  arena.allocate_bytes(10);
  auto* big = static_cast<char*>(arena.allocate_bytes(10'000));
  std::memset(big, 7, 10'000);
  EXPECT_GE(arena.capacity_bytes(), 10'000 + 256);
}

TEST(Arena, RewindReusesTheSameBytes) {
  Arena arena(Device{}, 1024);
  auto* kept = static_cast<char*>(arena.allocate_bytes(100));
  std::memset(kept, 42, 100);
  const Arena::Mark mark = arena.mark();
  void* first = arena.allocate_bytes(300);
  arena.allocate_bytes(5'000);  // opens a second chunk
  arena.rewind(mark);
  EXPECT_EQ(arena.allocate_bytes(300), first);
  EXPECT_TRUE(std::all_of(kept, kept + 100, [](char c) { return c == 42; }));
}

TEST(Arena, RewindAcrossChunksDoesNotAllocateAgain) {
  Arena arena(Device{}, 512);
  const Arena::Mark start = arena.mark();
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 20; ++i) arena.allocate_bytes(200);
    const int64_t capacity = arena.capacity_bytes();
    arena.rewind(start);
    EXPECT_EQ(arena.capacity_bytes(), capacity);
    if (round > 0) {
      for (int i = 0; i < 20; ++i) arena.allocate_bytes(200);
      EXPECT_EQ(arena.capacity_bytes(), capacity) << "round " << round;
      arena.rewind(start);
    }
  }
}

TEST(Arena, ScopesNest) {
  Arena arena(Device{}, 1024);
  void* in_outer = nullptr;
  void* in_inner = nullptr;
  {
    ArenaScope outer(arena);
    in_outer = arena.allocate_bytes(64);
    {
      ArenaScope inner(arena);
      in_inner = arena.allocate_bytes(64);
    }
    EXPECT_EQ(arena.allocate_bytes(64), in_inner);
  }
  EXPECT_EQ(arena.allocate_bytes(64), in_outer);
}

TEST(Arena, ResetMergesChunksSoThatTheNextStepNeedsOne) {
  Arena arena(Device{}, 256);
  const auto step = [&arena] {
    for (int i = 0; i < 30; ++i) arena.allocate_bytes(200);
  };
  step();
  arena.reset();
  step();
  const int64_t settled = arena.capacity_bytes();
  for (int i = 0; i < 5; ++i) {
    arena.reset();
    EXPECT_EQ(arena.mark().chunk, 0U);
    step();
    EXPECT_EQ(arena.mark().chunk, 0U) << "the step did not fit one chunk";
    EXPECT_EQ(arena.capacity_bytes(), settled);
  }
}

TEST(ArenaDeathTest, RunningOutOfMemoryNamesTheSize) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Arena arena{Device{}};
  EXPECT_DEATH(arena.allocate_bytes(int64_t{1} << 60), "out_of_memory.*1152921504606846976 bytes");
}

}  // namespace
}  // namespace cedar
