// A writer that is killed, again and again: what it had written is there, and nothing torn is ever served.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "storage/segment_inspect.h"
#include "tests/storage/store_fixture.h"

namespace cedar::storage {
namespace {

using namespace test;

constexpr size_t kValue = 20'000;

SegmentStoreOptions options(const std::string& directory) {
  SegmentStoreOptions options;
  options.directory = directory;
  options.identity = "crash";
  options.value_bytes = kValue;
  options.max_bytes = 64 << 20;
  options.segment_bytes = 2 << 20;
  options.io = FileIoKind::threads;  // a ring does not survive a fork
  options.depth = 4;
  return options;
}

/// Writes values from `first` on until it is killed, and says after each that the store reports as written how many they are.
[[noreturn]] void write_until_killed(const std::string& directory, uint64_t first, int report) {
  auto store = SegmentStore::open(options(directory));
  if (!store) ::_exit(1);
  for (uint64_t i = first;; ++i) {
    while (!(*store)->write(key_of(i), value_of(i, kValue))) std::this_thread::sleep_for(1ms);
    const int64_t written = (*store)->stats().written;
    if (::write(report, &written, sizeof written) != sizeof written) ::_exit(2);
  }
}

TEST(SegmentCrash, KilledWritersLoseTheirTailAtMost) {
  const cedar::test::TempDirectory folder;
  const std::string directory = folder.path() + "/blocks";
  std::mt19937 random(7);
  std::vector<uint64_t> promised;  // in the order of writing
  uint64_t first = 0;
  for (int life = 0; life < 12; ++life) {
    int pipe_ends[2];
    ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_until_killed(directory, first, pipe_ends[1]);
    ::close(pipe_ends[1]);
    // Killed after a number of values, not after a time.
    const int64_t enough = 1 + static_cast<int64_t>(random() % 120);
    int64_t written = 0;
    uint64_t tried = 0;
    while (written<enough&& ::read(pipe_ends[0], &written, sizeof written)> 0) ++tried;
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
    // It may have said more before it died.
    while (::read(pipe_ends[0], &written, sizeof written) > 0) ++tried;
    ::close(pipe_ends[0]);

    const auto report = verify_segments(directory, {});
    ASSERT_TRUE(report.has_value());
    const auto store = open(options(directory));
    ASSERT_NE(store, nullptr);
    int64_t here = 0;
    for (uint64_t i = first; i < first + tried + 100; ++i) {
      const auto value = read(*store, i, kValue);
      if (!value) {
        EXPECT_NE(value.error().code, Errc::io_error) << value.error().message();
        continue;
      }
      ++here;
      EXPECT_EQ(*value, value_of(i, kValue)) << i;
      promised.push_back(i);
    }
    EXPECT_GE(here, written) << "life " << life;
    for (const uint64_t i : promised) {
      const auto value = read(*store, i, kValue);
      ASSERT_TRUE(value.has_value()) << i << ": " << value.error().message();
    }
    first += 10'000;
  }
}

TEST(SegmentCrash, AHalfWrittenSlotIsSkippedAndCounted) {
  const cedar::test::TempDirectory folder;
  const std::string directory = folder.path() + "/blocks";
  {
    const auto store = open(options(directory));
    for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(store->write(key_of(i), value_of(i, kValue)));
    ASSERT_TRUE(store->flush(60s).has_value());
  }
  const std::string path = segment_paths(directory).front();
  const auto file = SegmentFile::open(path, true);
  ASSERT_TRUE(file.has_value());
  const SegmentShape shape = (*file)->header().shape;
  ASSERT_TRUE((*file)->reopen().has_value());
  const int fd = ::open(path.c_str(), O_RDWR);
  // Slot 8: half of its header. Slot 9: its header, but none of its value.
  const std::vector<char> zeros(static_cast<size_t>(shape.slot_bytes()));
  ASSERT_GT(::pwrite(fd, zeros.data(), 30, shape.slot_offset(8) + 30), 0);
  ASSERT_GT(::pwrite(fd, zeros.data(), zeros.size() - 64, shape.slot_offset(9) + 64), 0);
  ::close(fd);
  const auto store = open(options(directory));
  EXPECT_EQ(store->stats().torn, 1);
  EXPECT_EQ(store->stats().values, 9);
  EXPECT_EQ(read(*store, 8, kValue).error().code, Errc::not_found);
  EXPECT_EQ(read(*store, 9, kValue).error().code, Errc::checksum_mismatch);
  for (uint64_t i = 0; i < 8; ++i) EXPECT_TRUE(read(*store, i, kValue).has_value());
  // Neither is written over: the next value goes behind them.
  ASSERT_TRUE(store->write(key_of(50), value_of(50, kValue)));
  ASSERT_TRUE(store->flush(60s).has_value());
  EXPECT_TRUE(read(*store, 50, kValue).has_value());
  EXPECT_TRUE(read(*store, 7, kValue).has_value());
}

}  // namespace
}  // namespace cedar::storage
