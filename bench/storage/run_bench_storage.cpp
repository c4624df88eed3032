// `cedar bench storage`: the SSD tier beside plain sequential reads and writes of one file, in the same run.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <random>

#include "apps/commands.h"
#include "apps/options.h"
#include "bench/kernels/timing.h"
#include "bench/support/report.h"
#include "core/units.h"
#include "storage/aligned_memory.h"
#include "storage/segment_store.h"

namespace cedar::bench {
namespace {

using namespace storage;

constexpr int64_t kPlainBytes = 1 << 20;  // of one sequential operation
constexpr int kPlainDepth = 8;
constexpr size_t kPrefixKeys = 1000;
constexpr int kLookups = 2000;

struct Options {
  std::string directory;
  int64_t values = 4096;
  int64_t value_bytes = 113'920;  // a KV block of the release
  int64_t repeats = 3;
  std::string io = "automatic";
  std::string machine;
  std::string json_path;
};

FileIoKind io_kind(const std::string& name) {
  if (name == "io_uring") return FileIoKind::uring;
  return name == "threads" ? FileIoKind::threads : FileIoKind::automatic;
}

/// Keeps a number of operations under way.
class Flow {
 public:
  explicit Flow(int64_t most) : most_(most) {}
  void begin() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return running_ < most_; });
    ++running_;
  }
  void end(const Status& status) {
    std::lock_guard lock(mutex_);
    if (!status && !error_) error_ = status.error();
    --running_;
    changed_.notify_one();
  }
  Status wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return running_ == 0; });
    if (error_) return *error_;
    return {};
  }

 private:
  const int64_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t running_ = 0;
  std::optional<Error> error_;
};

StoreKey key_of(uint64_t number) {
  StoreKey key;
  std::mt19937_64 random(number + 1);
  for (uint8_t& byte : key.bytes) byte = static_cast<uint8_t>(random());
  return key;
}

/// Bytes per second of one file, written or read from front to back past the page cache.
Result<double> plain(const std::string& path, int64_t bytes, bool write, FileIoKind kind) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0640);
  if (fd < 0) return make_error(Errc::io_error, "cannot open " + path);
  if (write && ::posix_fallocate(fd, 0, bytes) != 0) {
    ::close(fd);
    return make_error(Errc::io_error, "no room for " + path);
  }
  CEDAR_TRY(const auto io, make_file_io(kind, kPlainDepth));
  std::vector<AlignedMemory> memory;
  for (int i = 0; i < kPlainDepth; ++i) {
    memory.emplace_back(kPlainBytes);
    std::mt19937_64 random(static_cast<uint64_t>(i));
    for (std::byte& byte : memory.back().span()) byte = static_cast<std::byte>(random());
  }
  Flow flow(kPlainDepth);
  const double begin = now_s(Clock::wall);
  for (int64_t at = 0; at + kPlainBytes <= bytes; at += kPlainBytes) {
    flow.begin();
    FileOperation operation;
    operation.fd = fd;
    operation.write = write;
    operation.data = memory[static_cast<size_t>(at / kPlainBytes % kPlainDepth)].data();
    operation.bytes = kPlainBytes;
    operation.offset = at;
    operation.done = [&flow](const Status& status) { flow.end(status); };
    io->submit(std::move(operation));
  }
  const Status done = flow.wait();
  if (write) ::fdatasync(fd);
  const double seconds = now_s(Clock::wall) - begin;
  ::close(fd);
  if (!done) return done.error();
  return static_cast<double>(bytes / kPlainBytes * kPlainBytes) / seconds;
}

class Tier {
 public:
  static Result<std::unique_ptr<Tier>> open(const Options& options, const std::string& directory) {
    auto tier = std::make_unique<Tier>();
    SegmentStoreOptions settings;
    settings.directory = directory;
    settings.identity = "bench";
    settings.value_bytes = options.value_bytes;
    settings.max_bytes =
        2 * options.values * SegmentShape{options.value_bytes, 1}.file_bytes() + (int64_t{4} << 30);
    settings.io = io_kind(options.io);
    CEDAR_TRY(tier->store_, SegmentStore::open(settings));
    for (int64_t i = 0; i < options.values; ++i) {
      tier->keys_.push_back(key_of(static_cast<uint64_t>(i)));
    }
    tier->value_bytes_ = static_cast<size_t>(options.value_bytes);
    tier->value_.resize(tier->value_bytes_);
    std::mt19937_64 random(9);
    for (std::byte& byte : tier->value_) byte = static_cast<std::byte>(random());
    return tier;
  }

  Result<double> write_all() {
    const double begin = now_s(Clock::wall);
    for (const StoreKey& key : keys_) {
      while (!store_->write(key, value_)) ::usleep(50);
    }
    CEDAR_CHECK_OK(store_->flush(std::chrono::minutes(10)));
    return total() / (now_s(Clock::wall) - begin);
  }
  Result<double> read_all(const std::vector<size_t>& order, int64_t depth) {
    std::vector<std::vector<std::byte>> targets(static_cast<size_t>(depth),
                                                std::vector<std::byte>(value_bytes_));
    Flow flow(depth);
    const double begin = now_s(Clock::wall);
    for (size_t i = 0; i < order.size(); ++i) {
      flow.begin();
      store_->read(keys_[order[i]], targets[i % targets.size()],
                   [&flow](const Status& status) { flow.end(status); });
    }
    CEDAR_CHECK_OK(flow.wait());
    return total() / (now_s(Clock::wall) - begin);
  }
  /// Microseconds, sorted.
  Result<std::vector<double>> read_latency(const std::vector<size_t>& order, size_t count) {
    std::vector<std::byte> target(value_bytes_);
    std::vector<double> samples;
    for (size_t i = 0; i < std::min(count, order.size()); ++i) {
      Flow flow(1);
      const double begin = now_s(Clock::wall);
      flow.begin();
      store_->read(keys_[order[i]], target, [&flow](const Status& status) { flow.end(status); });
      CEDAR_CHECK_OK(flow.wait());
      samples.push_back((now_s(Clock::wall) - begin) * 1e6);
    }
    std::sort(samples.begin(), samples.end());
    return samples;
  }
  /// Of the longest prefix of 1,000 keys; microseconds, sorted.
  std::vector<double> lookup_latency() const {
    std::vector<double> samples;
    const size_t count = std::min(kPrefixKeys, keys_.size());
    for (int i = 0; i < kLookups; ++i) {
      const size_t first = static_cast<size_t>(i) * 37 % (keys_.size() - count + 1);
      const double begin = now_s(Clock::wall);
      const int64_t found = store_->prefix({keys_.data() + first, count});
      samples.push_back((now_s(Clock::wall) - begin) * 1e6);
      if (found != static_cast<int64_t>(count)) samples.back() = 1e9;  // would be seen
    }
    std::sort(samples.begin(), samples.end());
    return samples;
  }
  std::string io_name() const { return std::string(store_->io_name()); }

 private:
  double total() const { return static_cast<double>(keys_.size() * value_bytes_); }

  std::unique_ptr<SegmentStore> store_;
  std::vector<StoreKey> keys_;
  std::vector<std::byte> value_;
  size_t value_bytes_ = 0;
};

Status measure(const Options& options, const std::string& directory, ReportFile& file) {
  const int64_t bytes = options.values * options.value_bytes;
  double plain_write = 0, plain_read = 0, write = 0, in_order = 0, shuffled = 0;
  std::vector<double> reads, lookups;
  std::string io;
  std::vector<size_t> order(static_cast<size_t>(options.values));
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<size_t> random = order;
  std::shuffle(random.begin(), random.end(), std::mt19937(5));
  const FileIoKind kind = io_kind(options.io);
  // Alternating, the best of each: a virtual disk has moods.
  for (int64_t i = 0; i < options.repeats; ++i) {
    const std::string path = directory + "/plain";
    CEDAR_TRY(const double pw, plain(path, bytes, true, kind));
    CEDAR_TRY(const double pr, plain(path, bytes, false, kind));
    std::filesystem::remove(path);
    const std::string tier_directory = directory + "/tier-" + std::to_string(i);
    CEDAR_TRY(const auto tier, Tier::open(options, tier_directory));
    CEDAR_TRY(const double w, tier->write_all());
    CEDAR_TRY(const double r, tier->read_all(order, 32));
    CEDAR_TRY(const double s, tier->read_all(random, 32));
    CEDAR_TRY(reads, tier->read_latency(random, 1000));
    lookups = tier->lookup_latency();
    io = tier->io_name();
    plain_write = std::max(plain_write, pw);
    plain_read = std::max(plain_read, pr);
    write = std::max(write, w);
    in_order = std::max(in_order, r);
    shuffled = std::max(shuffled, s);
    std::filesystem::remove_all(tier_directory);
  }
  std::printf("%ld values of %ld bytes, %s, in %s\n", static_cast<long>(options.values),
              static_cast<long>(options.value_bytes), io.c_str(), directory.c_str());
  std::printf("%-34s %8s %8s\n", "", "GB/s", "ratio");
  const auto line = [](const char* what, double rate, double of) {
    std::printf("%-34s %8.2f %8.2f\n", what, rate / 1e9, rate / of);
  };
  line("plain sequential write", plain_write, plain_write);
  line("tier, write and sync", write, plain_write);
  line("plain sequential read", plain_read, plain_read);
  line("tier, read in order, checked", in_order, plain_read);
  line("tier, read at random, checked", shuffled, plain_read);
  std::printf("one read, us:              p50 %8.1f  p99 %8.1f\n", percentile(reads, 0.5),
              percentile(reads, 0.99));
  std::printf("prefix of %zu keys, us:   p50 %8.1f  p99 %8.1f\n", kPrefixKeys,
              percentile(lookups, 0.5), percentile(lookups, 0.99));
  return file.write(
      {{"benchmark", "storage"},
       {"machine", options.machine},
       {"io", io},
       {"values", options.values},
       {"value_bytes", options.value_bytes},
       {"plain_write_bytes_per_s", plain_write},
       {"plain_read_bytes_per_s", plain_read},
       {"write_bytes_per_s", write},
       {"read_in_order_bytes_per_s", in_order},
       {"read_at_random_bytes_per_s", shuffled},
       {"read_us", {{"p50", percentile(reads, 0.5)}, {"p99", percentile(reads, 0.99)}}},
       {"prefix_keys", kPrefixKeys},
       {"prefix_us", {{"p50", percentile(lookups, 0.5)}, {"p99", percentile(lookups, 0.99)}}}});
}

Status run(const Options& options) {
  CEDAR_TRY(ReportFile file, ReportFile::open(options.json_path));
  std::string place = (options.directory.empty() ? std::filesystem::temp_directory_path().string()
                                                 : options.directory) +
                      "/cedar-bench-XXXXXX";
  if (::mkdtemp(place.data()) == nullptr) {
    return make_error(Errc::io_error, "cannot make a directory " + place);
  }
  const Status status = measure(options, place, file);
  std::error_code ignored;
  std::filesystem::remove_all(place, ignored);
  return status;
}

}  // namespace
}  // namespace cedar::bench

namespace cedar::apps {

int run_bench_storage(int argc, char** argv) {
  bench::Options options;
  CLI::App app{"The SSD tier of the KV cache, against plain sequential reads and writes.",
               "cedar bench storage"};
  app.add_option("--dir", options.directory,
                 "where to write (default: the directory for temporary files)");
  app.add_option("--values", options.values, "KV blocks")->check(integer_in(1000, 10'000'000));
  app.add_option("--value-bytes", options.value_bytes, "of each (default: a block of the release)")
      ->check(integer_in(64, 64 << 20));
  app.add_option("--io", options.io, "automatic, io_uring, threads")
      ->check(CLI::IsMember({"automatic", "io_uring", "threads"}));
  app.add_option("--repeats", options.repeats, "runs; the best of each measurement counts")
      ->check(integer_in(1, 1000));
  app.add_option("--machine", options.machine, "name of this machine, for the report");
  app.add_option("--json", options.json_path, "write the figures to this file");
  if (const auto status = apps::parse_options(app, argc, argv)) return *status;
  if (const Status status = bench::run(options); !status) {
    std::fprintf(stderr, "cedar bench storage: %s\n", status.error().message().c_str());
    return 1;
  }
  return 0;
}

}  // namespace cedar::apps
