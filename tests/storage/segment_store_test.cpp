#include "storage/segment_store.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include "storage/segment_inspect.h"
#include "tests/storage/store_fixture.h"

namespace cedar::storage {
namespace {

using namespace test;

constexpr size_t kValue = 10'000;

class SegmentStoreTest : public testing::TestWithParam<FileIoKind> {
 protected:
  cedar::test::TempDirectory folder_;
  SegmentStoreOptions options_;

  void SetUp() override {
    options_.directory = folder_.path() + "/blocks";
    options_.identity = "a model";
    options_.value_bytes = kValue;
    options_.max_bytes = 8 << 20;
    options_.segment_bytes = 1 << 20;
    options_.io = GetParam();
    options_.depth = 4;
    const auto probe = make_file_io(GetParam(), 1);
    if (!probe) GTEST_SKIP() << probe.error().message();
  }
  /// Writes until it is taken: the store may be busy.
  static void put(SegmentStore& store, uint64_t number) {
    while (!store.write(key_of(number), value_of(number, kValue))) std::this_thread::sleep_for(1ms);
  }
  static void put(SegmentStore& store, uint64_t first, uint64_t end) {
    for (uint64_t i = first; i < end; ++i) put(store, i);
    ASSERT_TRUE(store.flush(60s).has_value());
  }
  static void expect(SegmentStore& store, uint64_t number) {
    const auto value = read(store, number, kValue);
    ASSERT_TRUE(value.has_value()) << number << ": " << value.error().message();
    EXPECT_EQ(*value, value_of(number, kValue)) << number;
  }
};

TEST_P(SegmentStoreTest, GivesBackWhatItWasGiven) {
  const auto store = open(options_);
  put(*store, 0, 20);
  for (uint64_t i = 0; i < 20; ++i) expect(*store, i);
  const auto missing = read(*store, 99, kValue);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, Errc::not_found);
  const SegmentStoreStats stats = store->stats();
  EXPECT_EQ(stats.values, 20);
  EXPECT_EQ(stats.written, 20);
  EXPECT_EQ(stats.reads, 20);
  EXPECT_EQ(stats.missed, 1);
  EXPECT_EQ(stats.staged_bytes, 0);
  EXPECT_EQ(stats.reads_under_way, 0);
}

TEST_P(SegmentStoreTest, KnowsTheLongestPrefix) {
  const auto store = open(options_);
  put(*store, 0, 5);
  put(*store, 6, 9);
  std::vector<StoreKey> keys;
  for (uint64_t i = 0; i < 9; ++i) keys.push_back(key_of(i));
  EXPECT_EQ(store->prefix(keys), 5);
  EXPECT_EQ(store->prefix(std::span(keys).first(3)), 3);
  EXPECT_EQ(store->prefix(std::span(keys).subspan(5)), 0);
  EXPECT_EQ(store->prefix({}), 0);
}

TEST_P(SegmentStoreTest, WritesTheSameValueOnce) {
  const auto store = open(options_);
  put(*store, 0, 3);
  put(*store, 0, 3);
  EXPECT_EQ(store->stats().written, 3);
  EXPECT_EQ(store->stats().known, 3);
}

// Field report B78: a cache that is never hit after a restart.
TEST_P(SegmentStoreTest, ARestartFindsEverything) {
  {
    const auto store = open(options_);
    put(*store, 0, 150);  // more than one segment
    EXPECT_GT(store->stats().segments, 1);
  }
  for (int life = 0; life < 20; ++life) {
    const auto store = open(options_);
    const auto next = static_cast<uint64_t>(150 + life);
    EXPECT_EQ(store->stats().values, 150 + life);
    for (uint64_t i = 0; i < next; i += 7) expect(*store, i);
    put(*store, next, next + 1);
    // A restart does not cost a segment.
    EXPECT_EQ(store->stats().segments, 1 + (150 + life) / shape_for(kValue, 1 << 20).slots);
  }
}

// Field report B77: use that counts from zero after a restart.
TEST_P(SegmentStoreTest, TheLimitHoldsAcrossRestarts) {
  options_.max_bytes = 10 << 20;
  {
    const auto store = open(options_);
    put(*store, 0, 900);  // 9 MB
    EXPECT_LE(store->stats().bytes, options_.max_bytes);
  }
  const auto store = open(options_);
  EXPECT_GT(store->stats().values, 500);
  for (uint64_t i = 900; i < 1400; ++i) {
    put(*store, i);
    EXPECT_LE(bytes_on_disk(options_.directory), options_.max_bytes);
    EXPECT_LE(store->stats().bytes, options_.max_bytes);
  }
  ASSERT_TRUE(store->flush(60s).has_value());
  expect(*store, 1399);
  // The oldest went, all of a segment together, and that this was early is counted.
  EXPECT_EQ(read(*store, 0, kValue).error().code, Errc::not_found);
  EXPECT_GT(store->stats().evicted, 0);
  EXPECT_EQ(store->stats().evicted_young, store->stats().evicted);
}

TEST_P(SegmentStoreTest, ALowerLimitIsReachedAtTheNextOpening) {
  {
    const auto store = open(options_);
    put(*store, 0, 600);
  }
  options_.max_bytes = 3 << 20;
  const auto store = open(options_);
  EXPECT_LE(bytes_on_disk(options_.directory), options_.max_bytes);
  EXPECT_GT(store->stats().values, 0);
  expect(*store, 599);
}

TEST_P(SegmentStoreTest, NothingIsForgottenUnderTheLimit) {
  options_.retention = 0s;  // even then
  const auto store = open(options_);
  put(*store, 0, 300);
  for (uint64_t i = 0; i < 300; ++i) expect(*store, i);
  EXPECT_EQ(store->stats().evicted, 0);
}

TEST_P(SegmentStoreTest, AnotherIdentityNeverHits) {
  {
    const auto store = open(options_);
    put(*store, 0, 10);
  }
  options_.identity = "another model";
  const auto store = open(options_);
  EXPECT_EQ(store->stats().values, 0);
  EXPECT_EQ(store->stats().foreign, 1);
  EXPECT_EQ(bytes_on_disk(options_.directory), 0);
}

// Two files of one number count twice against the limit and are one segment; a copy may also have the next segment's name.
TEST_P(SegmentStoreTest, CopiesOfASegmentAreRemoved) {
  options_.max_bytes = 8 << 20;
  {
    const auto store = open(options_);
    put(*store, 0, 10);
  }
  const std::string only = segment_paths(options_.directory).front();
  for (int copy = 2; copy < 20; ++copy) {
    char name[64];
    std::snprintf(name, sizeof name, "/segment-%016x.seg", copy);
    std::filesystem::copy_file(only, options_.directory + name);
  }
  const auto store = open(options_);
  EXPECT_EQ(store->stats().foreign, 18);
  EXPECT_EQ(store->stats().segments, 1);
  EXPECT_EQ(store->stats().bytes, bytes_on_disk(options_.directory));
  for (uint64_t i = 0; i < 10; ++i) expect(*store, i);
  put(*store, 10, 200);  // more segments
  expect(*store, 199);
}

// What is no file of the store's costs neither its values nor its start, nor what a link leads to.
TEST_P(SegmentStoreTest, LinksPipesAndDirectoriesAreNoSegments) {
  {
    const auto store = open(options_);
    put(*store, 0, 10);
  }
  const std::string elsewhere = options_.directory + "-elsewhere";
  std::filesystem::copy(options_.directory, elsewhere);
  const auto path = [this](const std::string& name) {
    return options_.directory + "/segment-" + name + ".seg";
  };
  std::filesystem::create_symlink(elsewhere + "/segment-0000000000000001.seg", path("link"));
  std::filesystem::create_symlink("/nowhere", path("nowhere"));
  std::filesystem::create_directories(path("full") + "/of files");
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const auto listed = list_segments(options_.directory);
  ASSERT_TRUE(listed.has_value());
  EXPECT_EQ(
      std::count_if(listed->begin(), listed->end(),
                    [](const SegmentSummary& segment) { return segment.problem.has_value(); }),
      4);
  const auto store = open(options_);
  ASSERT_NE(store, nullptr);
  for (uint64_t i = 0; i < 10; ++i) expect(*store, i);
  EXPECT_EQ(bytes_on_disk(elsewhere), bytes_on_disk(options_.directory));
  EXPECT_TRUE(std::filesystem::exists(path("full") + "/of files"));
}

TEST_P(SegmentStoreTest, OneProcessAtATime) {
  const auto store = open(options_);
  const auto second = SegmentStore::open(options_);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, Errc::unavailable);
  EXPECT_THAT(second.error().context, testing::HasSubstr(options_.directory));
}

TEST_P(SegmentStoreTest, ADamagedValueIsNeverServed) {
  {
    const auto store = open(options_);
    put(*store, 0, 10);
  }
  const std::string path = segment_paths(options_.directory).front();
  const auto file = SegmentFile::open(path, false);
  ASSERT_TRUE(file.has_value());
  const int64_t at = (*file)->header().shape.slot_offset(4) + kSlotHeaderBytes + 1234;
  const int fd = ::open(path.c_str(), O_RDWR);
  char byte = 0;
  ASSERT_EQ(::pread(fd, &byte, 1, at), 1);
  byte = static_cast<char>(byte ^ 0x10);
  ASSERT_EQ(::pwrite(fd, &byte, 1, at), 1);
  ::close(fd);

  const auto store = open(options_);
  const auto value = read(*store, 4, kValue);
  ASSERT_FALSE(value.has_value());
  EXPECT_EQ(value.error().code, Errc::checksum_mismatch);
  EXPECT_EQ(store->stats().corrupt, 1);
  EXPECT_FALSE(store->contains(key_of(4)));
  for (const uint64_t other : {3u, 5u}) expect(*store, other);
  put(*store, 4, 5);  // comes back when it is written again
  expect(*store, 4);
}

TEST_P(SegmentStoreTest, WhatFindsNoRoomIsDroppedAtOnce) {
  options_.max_staged_bytes = 5 * SegmentShape{kValue, 1}.slot_bytes();
  const auto store = open(options_);
  int64_t taken = 0, dropped = 0;
  for (uint64_t i = 0; i < 2000; ++i) {
    const bool ok = store->write(key_of(i), value_of(i, kValue));
    (ok ? taken : dropped) += 1;
    EXPECT_LE(store->stats().staged_bytes, options_.max_staged_bytes);
  }
  ASSERT_TRUE(store->flush(60s).has_value());
  EXPECT_EQ(store->stats().written, taken);
  EXPECT_EQ(store->stats().dropped_no_room, dropped);
}

// Field report B81: a writer that is blocked for ever. Here the disk takes nothing more, as a full one does.
TEST_P(SegmentStoreTest, ADiskThatTakesNothingDropsWritesAndServesReads) {
  std::signal(SIGXFSZ, SIG_IGN);
  options_.retry_interval = 50ms;
  const auto store = open(options_);
  put(*store, 0, 10);
  rlimit before{}, tight{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  tight = before;
  tight.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  uint64_t next = 10;
  const auto end = std::chrono::steady_clock::now() + 60s;
  while (store->stats().write_errors == 0 && std::chrono::steady_clock::now() < end) {
    store->write(key_of(next), value_of(next, kValue));
    ++next;
  }
  EXPECT_GT(store->stats().write_errors, 0);
  for (uint64_t i = 0; i < 10; ++i) expect(*store, i);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  // Goes on by itself.
  const uint64_t late = 1'000'000;
  while (!store->contains(key_of(late)) && std::chrono::steady_clock::now() < end) {
    store->write(key_of(late), value_of(late, kValue));
    std::this_thread::sleep_for(5ms);
  }
  expect(*store, late);
}

TEST_P(SegmentStoreTest, TooManyReadsAreRefused) {
  options_.max_reads = 2;
  const auto store = open(options_);
  put(*store, 0, 4);
  std::mutex gate;
  std::unique_lock closed(gate);
  std::atomic<int> good{0}, refused{0}, ended{0};
  std::vector<std::vector<std::byte>> targets(200, std::vector<std::byte>(kValue));
  for (size_t i = 0; i < targets.size(); ++i) {
    store->read(key_of(i % 4), targets[i], [&](const Status& status) {
      if (status) ++good;
      else if (status.error().code == Errc::overloaded) ++refused;
      ++ended;
    });
  }
  while (ended < 200) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(good + refused, 200);
  EXPECT_GT(good, 0);
  EXPECT_EQ(store->stats().reads_under_way, 0);
}

TEST_P(SegmentStoreTest, ManyThreadsReadAndWriteWhileSegmentsGo) {
  options_.max_bytes = 4 << 20;
  options_.segment_bytes = 256 << 10;
  const auto store = open(options_);
  std::atomic<uint64_t> written{0};
  std::atomic<bool> stop{false};
  std::atomic<int64_t> hits{0}, wrong{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&, r] {
      std::mt19937_64 random(static_cast<uint64_t>(r));
      while (!stop) {
        const uint64_t number = random() % (written + 1);
        const auto value = read(*store, number, kValue);
        if (!value) continue;
        ++hits;
        if (*value != value_of(number, kValue)) ++wrong;
      }
    });
  }
  for (uint64_t i = 0; i < 1500; ++i) {
    put(*store, i);
    written = i;
  }
  ASSERT_TRUE(store->flush(60s).has_value());
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(hits, 0);
  EXPECT_GT(store->stats().evicted, 0);
  EXPECT_EQ(store->stats().corrupt, 0);
}

TEST_P(SegmentStoreTest, OptionsThatCannotBeAreNamed) {
  options_.max_bytes = 1000;
  const auto small = SegmentStore::open(options_);
  ASSERT_FALSE(small.has_value());
  EXPECT_EQ(small.error().code, Errc::invalid_config);
  EXPECT_THAT(small.error().context, testing::HasSubstr("max_bytes"));
  EXPECT_THAT(small.error().context, testing::HasSubstr("1000"));
  options_.max_bytes = 8 << 20;
  options_.directory = "/proc/no-such-place";
  EXPECT_EQ(SegmentStore::open(options_).error().code, Errc::io_error);
}

INSTANTIATE_TEST_SUITE_P(Io, SegmentStoreTest,
                         testing::Values(FileIoKind::uring, FileIoKind::threads),
                         [](const auto& kind) {
                           return kind.param == FileIoKind::uring ? "uring" : "threads";
                         });

}  // namespace
}  // namespace cedar::storage
