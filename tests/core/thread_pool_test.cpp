#include "core/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "core/units.h"

namespace cedar {
namespace {

/// Plain (not atomic) counters: a range given to two threads is a data race that ThreadSanitizer sees,
/// and a wrong count that the caller sees.
void expect_covered_once(ThreadPool& pool, int64_t count, int64_t grain) {
  std::vector<int> hits(static_cast<size_t>(count), 0);
  std::atomic<int64_t> calls{0};
  std::atomic<bool> bad_range{false};
  pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    calls.fetch_add(1, std::memory_order_relaxed);
    if (begin < 0 || begin >= end || end > count || end - begin > grain) bad_range = true;
    for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
  });
  EXPECT_FALSE(bad_range) << "count " << count << " grain " << grain;
  EXPECT_EQ(calls.load(), ceil_div(count, grain)) << "count " << count << " grain " << grain;
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(hits[static_cast<size_t>(i)], 1)
        << "item " << i << " count " << count << " grain " << grain;
  }
}

class ThreadPoolSizes : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolSizes, EveryItemIsVisitedOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (int64_t count : {1, 2, 3, 7, 64, 1000, 1001}) {
    for (int64_t grain : {1, 2, 3, 64, 999, 1000, 5000}) expect_covered_once(pool, count, grain);
  }
}

TEST_P(ThreadPoolSizes, EmptyAndDegenerateArguments) {
  ThreadPool pool(GetParam());
  int calls = 0;
  const auto count_calls = [&calls](int64_t, int64_t) { ++calls; };
  pool.parallel_for(0, 8, count_calls);
  pool.parallel_for(-5, 8, count_calls);
  EXPECT_EQ(calls, 0);
  int64_t items = 0;
  // A grain below one means one; count 1 keeps it on the calling thread, so `items` needs no lock.
  pool.parallel_for(1, 0, [&items](int64_t begin, int64_t end) { items += end - begin; });
  EXPECT_EQ(items, 1);
}

TEST_P(ThreadPoolSizes, ManyShortJobsInARow) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(257);
  std::iota(values.begin(), values.end(), 0);
  const int64_t expected = std::accumulate(values.begin(), values.end(), int64_t{0});
  for (int job = 0; job < 1000; ++job) {
    std::atomic<int64_t> sum{0};
    pool.parallel_for(257, 1 + job % 40, [&](int64_t begin, int64_t end) {
      int64_t part = 0;
      for (int64_t i = begin; i < end; ++i) part += values[static_cast<size_t>(i)];
      sum.fetch_add(part, std::memory_order_relaxed);
    });
    ASSERT_EQ(sum.load(), expected) << "job " << job;
  }
}

TEST_P(ThreadPoolSizes, WritesOfTheJobAreVisibleToTheCallerAndToTheNextJob) {
  ThreadPool pool(GetParam());
  std::vector<int> a(500, 0);
  std::vector<int> b(500, 0);
  for (int round = 1; round <= 200; ++round) {
    pool.parallel_for(500, 7, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) a[static_cast<size_t>(i)] = round;
    });
    // Read by whichever thread gets the mirrored range: ordering must hold between jobs, too.
    pool.parallel_for(500, 11, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        b[static_cast<size_t>(i)] = a[static_cast<size_t>(499 - i)];
      }
    });
    ASSERT_EQ(b, std::vector<int>(500, round));
  }
}

TEST_P(ThreadPoolSizes, WakesWorkersThatWentToSleep) {
  ThreadPool pool(GetParam());
  for (int job = 0; job < 5; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // longer than the workers spin
    expect_covered_once(pool, 64, 1);
  }
}

TEST_P(ThreadPoolSizes, CallerWaitsForASlowRange) {
  ThreadPool pool(GetParam());
  std::atomic<int> done{0};
  pool.parallel_for(4, 1, [&done](int64_t, int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than the caller spins
    ++done;
  });
  EXPECT_EQ(done.load(), 4);
}

TEST_P(ThreadPoolSizes, ConstructionAndDestructionWithoutWork) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(GetParam());
}

TEST_P(ThreadPoolSizes, DestructionRightAfterWork) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(GetParam());
    expect_covered_once(pool, 16, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolSizes, testing::Values(1, 2, 3, 8));

TEST(ThreadPool, OneThreadRunsInlineAndInOrder) {
  ThreadPool pool(1);
  const auto self = std::this_thread::get_id();
  std::vector<int64_t> begins;
  pool.parallel_for(10, 3, [&](int64_t begin, int64_t) {
    EXPECT_EQ(std::this_thread::get_id(), self);
    begins.push_back(begin);
  });
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 3, 6, 9}));
}

TEST(ThreadPool, WorkReallySpreadsOverThreads) {
  ThreadPool pool(3);
  std::atomic<int> inside{0};
  std::atomic<bool> together{false};
  // Each of the three ranges waits for the others, so only three threads at once can end this early.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  pool.parallel_for(3, 1, [&](int64_t, int64_t) {
    ++inside;
    while (inside.load() < 3 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    if (inside.load() == 3) together = true;
  });
  EXPECT_TRUE(together);
}

TEST(ThreadPool, PoolsAreIndependent) {
  std::vector<std::thread> callers;
  std::atomic<int64_t> total{0};
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&total] {
      ThreadPool pool(2);
      for (int job = 0; job < 200; ++job) {
        pool.parallel_for(50, 3, [&total](int64_t begin, int64_t end) {
          total.fetch_add(end - begin, std::memory_order_relaxed);
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 3 * 200 * 50);
}

TEST(ThreadPoolDeathTest, ZeroThreadsIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(ThreadPool(0), "invariant broken.*threads >= 1");
}

TEST(UsableProcessors, IsPositiveAndAtMostTheHardware) {
  EXPECT_GE(usable_processors(), 1);
  EXPECT_LE(usable_processors(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace cedar
