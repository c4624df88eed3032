// `cedar bench transport`: pulls between two processes of this machine, beside what ucx_perftest reaches in the same run,
// and the hand-off of a 100,000-token prompt of the release's shape.

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>

#include "apps/commands.h"
#include "apps/options.h"
#include "bench/kernels/timing.h"
#include "bench/support/report.h"
#include "bench/transport/perftest.h"
#include "bench/transport/producer.h"
#include "core/units.h"
#include "transport/ucx.h"

namespace cedar::bench {
namespace {

using namespace transport;

constexpr uint64_t kBlockBytes = 113'920;  // 128 tokens of global KV
constexpr uint64_t kHandoffTokens = 100'000;
// Window rings, open pairs, the last 128 boundary rows, n-gram history (spec/ced.md section 2).
constexpr uint64_t kFixedBytes = 1'351'680 + 12'288 + 5'244'928 + 12;
constexpr uint64_t kBlocks = kHandoffTokens / 128;
constexpr uint64_t kMemoryBytes = 128u << 20;
constexpr int kBursts = 5;  // of ours per run of ucx_perftest, which takes as long to start

struct Options {
  std::vector<std::string> links{"shm", "tcp"};
  std::vector<int64_t> sizes{4096,      16'384,    65'536,     262'144,
                             1'048'576, 4'194'304, 16'777'216, 67'108'864};
  int64_t spin_rounds = 0;
  int64_t repeats = 5;
  int64_t in_flight = 16;
  std::string machine;
  std::string json_path;
};

LinkKind link_kind(const std::string& name) {
  if (name == "tcp") return {"tcp", "tcp", "lo"};
  return {"shm", "posix,sysv,tcp,self", ""};
}

/// Counts callbacks and keeps the first error.
class Pending {
 public:
  Completion expect() {
    std::lock_guard lock(mutex_);
    ++count_;
    return [this](const Status& status) {
      std::lock_guard inner(mutex_);
      if (!status && !error_) error_ = status.error();
      if (--count_ <= wanted_) changed_.notify_one();
    };
  }
  int64_t count() {
    std::lock_guard lock(mutex_);
    return count_;
  }
  /// Until at most `left` are unfinished.
  Status wait(int64_t left) {
    std::unique_lock lock(mutex_);
    wanted_ = left;
    changed_.wait(lock, [&] { return count_ <= left; });
    wanted_ = -1;
    if (error_) return *error_;
    return {};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t count_ = 0;
  int64_t wanted_ = -1;  // by the one that waits
  std::optional<Error> error_;
};

struct Latency {
  double median_s = 0;
  double best_s = 0;
};

class Consumer {
 public:
  static Result<std::unique_ptr<Consumer>> connect(const LinkKind& kind, const Producer& producer,
                                                   const Options& options) {
    auto self = std::make_unique<Consumer>();
    TransportOptions settings;
    settings.identity = {NodeId(2), 1};
    settings.spin_rounds = static_cast<uint32_t>(options.spin_rounds);
    CEDAR_TRY(self->transport_, make_ucx_transport(settings, UcxOptions{kind.tls, kind.devices}));
    CEDAR_TRY(self->target_, self->transport_->allocate(kMemoryBytes));
    std::promise<Result<PeerInfo>> connected;
    self->transport_->connect({"127.0.0.1", producer.port()}, producer.memory().owner,
                              TimePoint::clock::now() + std::chrono::seconds(10),
                              [&](Result<PeerInfo> info) { connected.set_value(std::move(info)); });
    CEDAR_TRY(const PeerInfo info, connected.get_future().get());
    self->lanes_ = info.lanes;
    self->memory_ = producer.memory();
    return self;
  }

  const std::string& lanes() const { return lanes_; }

  Status pull(std::vector<ByteRange> source, std::vector<LocalRange> target, Pending& pending) {
    PullRequest request;
    request.source = memory_;
    request.source.ranges = std::move(source);
    request.target = std::move(target);
    request.deadline = TimePoint::clock::now() + std::chrono::seconds(60);
    if (auto started = transport_->pull(std::move(request), pending.expect()); !started)
      return started.error();
    return {};
  }

  /// Seconds of pulls of `bytes`, one at a time.
  Result<Latency> latency(uint64_t bytes, int64_t count) {
    std::vector<double> samples;
    for (int64_t i = 0; i < count + 3; ++i) {
      Pending pending;
      const double begin = now_s(Clock::wall);
      CEDAR_CHECK_OK(pull({{0, bytes, {}}}, {{target_.id, 0}}, pending));
      CEDAR_CHECK_OK(pending.wait(0));
      if (i >= 3) samples.push_back(now_s(Clock::wall) - begin);
    }
    std::sort(samples.begin(), samples.end());
    return Latency{samples[samples.size() / 2], samples.front()};
  }

  /// Bytes per second with `in_flight` pulls at a time, all of the same bytes, as ucx_perftest does.
  Result<double> bandwidth(uint64_t bytes, int64_t count, int64_t in_flight) {
    Pending pending;
    const double begin = now_s(Clock::wall);
    for (int64_t i = 0; i < count; ++i) {
      CEDAR_CHECK_OK(pull({{0, bytes, {}}}, {{target_.id, 0}}, pending));
      // Refill when half are done: a thread woken for every pull would measure the scheduler.
      if (pending.count() >= in_flight) CEDAR_CHECK_OK(pending.wait(in_flight / 2));
    }
    CEDAR_CHECK_OK(pending.wait(0));
    return static_cast<double>(bytes) * static_cast<double>(count) / (now_s(Clock::wall) - begin);
  }

  /// Seconds for all full blocks of the prompt, from scattered pages to scattered pages, and the fixed state.
  Result<double> handoff() {
    std::mt19937 random(1);
    const auto pages = [&random] {
      std::vector<uint64_t> order(kBlocks);
      for (uint64_t i = 0; i < kBlocks; ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      return order;
    };
    const auto from = pages(), to = pages();
    std::vector<ByteRange> source;
    std::vector<LocalRange> target;
    for (uint64_t i = 0; i < kBlocks; ++i) {
      source.push_back({from[i] * kBlockBytes, kBlockBytes, {}});
      target.push_back({target_.id, to[i] * kBlockBytes});
    }
    Pending pending;
    const double begin = now_s(Clock::wall);
    CEDAR_CHECK_OK(pull(std::move(source), std::move(target), pending));
    const uint64_t at = kBlocks * kBlockBytes;
    CEDAR_CHECK_OK(pull({{at, kFixedBytes, {}}}, {{target_.id, at}}, pending));
    CEDAR_CHECK_OK(pending.wait(0));
    return now_s(Clock::wall) - begin;
  }

 private:
  std::unique_ptr<Transport> transport_;
  Region target_;
  std::string lanes_;
  RegionDescriptor memory_;
};

int64_t iterations(uint64_t bytes) {
  return std::clamp<int64_t>(static_cast<int64_t>((128u << 20) / bytes), 4, 2000);
}

Status run_link(const LinkKind& kind, Producer& producer, const Options& options,
                nlohmann::ordered_json& report) {
  CEDAR_CHECK_OK(producer.start());
  CEDAR_TRY(auto consumer, Consumer::connect(kind, producer, options));
  // The same work on both sides: reads of the other's memory, or messages where these are what the link does well.
  const std::string test = kind.name == "tcp" ? "ucp_am_bw" : "ucp_get";
  std::printf("%s: %s; ucx_perftest %s\n%12s %12s %12s %10s %14s %8s\n", kind.name.c_str(),
              consumer->lanes().c_str(), test.c_str(), "bytes", "median us", "best us", "GB/s",
              "perftest GB/s", "ratio");
  double reference_1m = 0;
  for (const int64_t size : options.sizes) {
    const auto bytes = static_cast<uint64_t>(size);
    CEDAR_TRY(const Latency latency,
              consumer->latency(bytes, std::clamp<int64_t>(iterations(bytes), 20, 200)));
    // Short runs, alternating, the best of each: on a shared machine the disturbed ones say nothing about either.
    double rate = 0, reference = 0;
    for (int64_t i = 0; i < options.repeats; ++i) {
      for (int burst = 0; burst < kBursts; ++burst) {
        CEDAR_TRY(const double once,
                  consumer->bandwidth(bytes, iterations(bytes), options.in_flight));
        rate = std::max(rate, once);
      }
      const auto theirs = run_perftest(kind, test, bytes, static_cast<uint64_t>(iterations(bytes)));
      if (theirs) reference = std::max(reference, theirs->bytes_per_s);
    }
    if (size == 1 << 20) reference_1m = reference;
    std::printf("%12ld %12.1f %12.1f %10.2f %14.2f %8.2f\n", static_cast<long>(size),
                latency.median_s * 1e6, latency.best_s * 1e6, rate / 1e9, reference / 1e9,
                reference > 0 ? rate / reference : 0.0);
    std::fflush(stdout);
    report["pulls"].push_back({{"link", kind.name},
                               {"bytes", size},
                               {"latency_median_s", latency.median_s},
                               {"latency_best_s", latency.best_s},
                               {"bytes_per_s", rate},
                               {"perftest", test},
                               {"perftest_bytes_per_s", reference}});
  }
  double best = 1e9;
  for (int64_t i = 0; i < 2 * options.repeats + 1; ++i) {
    CEDAR_TRY(const double once, consumer->handoff());
    best = std::min(best, once);
  }
  const uint64_t total = kBlocks * kBlockBytes + kFixedBytes;
  const double rate = static_cast<double>(total) / best;
  std::printf("hand-off of %ld tokens: %ld blocks and %.2f MB, %.2f MB in %.1f ms, %.2f GB/s",
              static_cast<long>(kHandoffTokens), static_cast<long>(kBlocks), kFixedBytes / 1e6,
              static_cast<double>(total) / 1e6, best * 1e3, rate / 1e9);
  if (reference_1m > 0) std::printf(" (%.2f of perftest at 1 MiB)", rate / reference_1m);
  std::printf("\n\n");
  report["handoffs"].push_back({{"link", kind.name},
                                {"tokens", kHandoffTokens},
                                {"blocks", kBlocks},
                                {"bytes", total},
                                {"seconds", best},
                                {"bytes_per_s", rate},
                                {"lanes", consumer->lanes()},
                                {"perftest_1m_bytes_per_s", reference_1m}});
  return {};
}

Status run(const Options& options) {
  CEDAR_TRY(ReportFile file, ReportFile::open(options.json_path));
  // All forks before the first thread and the first UCX call.
  std::vector<std::unique_ptr<Producer>> producers;
  for (const std::string& name : options.links) {
    CEDAR_TRY(auto producer, Producer::fork(link_kind(name), kMemoryBytes,
                                            static_cast<uint32_t>(options.spin_rounds)));
    producers.push_back(std::move(producer));
  }
  nlohmann::ordered_json report = {{"benchmark", "transport"},
                                   {"machine", options.machine},
                                   {"spin_rounds", options.spin_rounds},
                                   {"in_flight", options.in_flight},
                                   {"pulls", nlohmann::ordered_json::array()},
                                   {"handoffs", nlohmann::ordered_json::array()}};
  for (size_t i = 0; i < producers.size(); ++i) {
    CEDAR_CHECK_OK(run_link(link_kind(options.links[i]), *producers[i], options, report));
    producers[i].reset();
  }
  return file.write(report);
}

}  // namespace
}  // namespace cedar::bench

namespace cedar::apps {

int run_bench_transport(int argc, char** argv) {
  bench::Options options;
  CLI::App app{"Pulls between two processes of this machine, against ucx_perftest.",
               "cedar bench transport"};
  app.add_option("--links", options.links, "shm, tcp")
      ->check(CLI::IsMember({"shm", "tcp"}))
      ->delimiter(',');
  app.add_option("--sizes", options.sizes, "bytes of a pull")
      ->check(integer_in(1, 64 << 20))
      ->delimiter(',');
  app.add_option("--spin-rounds", options.spin_rounds, "polling before sleeping, both sides")
      ->check(integer_in(0, 1'000'000'000));
  app.add_option("--in-flight", options.in_flight, "pulls at a time")->check(integer_in(1, 1000));
  app.add_option("--repeats", options.repeats, "runs of each measurement; the best counts")
      ->check(integer_in(1, 1000));
  app.add_option("--machine", options.machine, "name of this machine, for the report");
  app.add_option("--json", options.json_path, "write the figures to this file");
  if (const auto status = apps::parse_options(app, argc, argv)) return *status;
  if (const Status status = bench::run(options); !status) {
    std::fprintf(stderr, "cedar bench transport: %s\n", status.error().message().c_str());
    return 1;
  }
  return 0;
}

}  // namespace cedar::apps
