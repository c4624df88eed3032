// What breaks between real processes: SIGKILL, SIGSTOP, a restart on the same address, a link that goes down.

#include <random>

#include "tests/transport/backends.h"
#include "tests/transport/peer_process.h"

namespace cedar::test {
namespace {

struct Case {
  std::string name;
  std::string tls;
  std::string devices;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class PeerProcessTest : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr uint64_t kBytes = 64u << 20;

  void open_consumer(const std::function<void(TransportOptions&)>& change = {}) {
    TransportOptions options;
    options.identity = {NodeId(2), 1};
    options.handlers.on_peer_down = [this](const PeerInfo&, const Error&) { ++downs_; };
    if (change) change(options);
    UcxOptions ucx;
    ucx.tls = GetParam().tls;
    ucx.net_devices = GetParam().devices;
    auto made = make_ucx_transport(options, ucx);
    ASSERT_TRUE(made.has_value()) << made.error().message();
    consumer_ = std::move(*made);
    const auto region = consumer_->allocate(kBytes);
    ASSERT_TRUE(region.has_value());
    target_ = *region;
  }
  PeerArguments arguments() const {
    PeerArguments a;
    a.program = CEDAR_TRANSPORT_PEER;
    a.tls = GetParam().tls;
    a.devices = GetParam().devices;
    a.bytes = kBytes;
    return a;
  }
  void connect(const PeerProcess& peer) {
    ASSERT_TRUE(peer.started()) << peer.error();
    const auto info = connect_to(*consumer_, peer.port(), peer.descriptor().owner);
    ASSERT_TRUE(info.has_value()) << info.error().message();
  }
  /// The region's first `bytes` to the same place of the target.
  Outcome pull(const PeerProcess& peer, uint64_t bytes, TimePoint deadline) {
    PullRequest request;
    request.source = peer.descriptor();
    request.source.ranges = {{0, bytes, {}}};
    request.target = {{target_.id, 0}};
    request.deadline = deadline;
    request.release_lease = false;
    Outcome outcome;
    const auto transfer = consumer_->pull(request, outcome.callback());
    EXPECT_TRUE(transfer.has_value());
    return outcome;
  }
  /// Nothing writes to the target any more.
  void expect_quiet() {
    std::memset(target_.memory.data, 0x3C, kBytes);
    std::this_thread::sleep_for(milliseconds(150));
    for (uint64_t i = 0; i < kBytes; i += 4096)
      ASSERT_EQ(target_.memory.data[i], std::byte{0x3C}) << i;
  }

  std::atomic<int> downs_{0};
  std::unique_ptr<Transport> consumer_;
  Region target_;
};
INSTANTIATE_TEST_SUITE_P(Ucx, PeerProcessTest,
                         ::testing::Values(Case{"shm", "sysv,posix,tcp,self", ""},
                                           Case{"tcp", "tcp", "lo"}),
                         [](const auto& param) { return param.param.name; });

TEST_P(PeerProcessTest, PullsWhatTheOtherProcessHas) {
  open_consumer();
  PeerProcess peer(arguments());
  connect(peer);
  const Status status = pull(peer, kBytes, in(seconds(60))).wait(seconds(70));
  ASSERT_TRUE(status.has_value()) << status.error().message();
  EXPECT_TRUE(has_pattern(target_.memory.data, kBytes, 1));
  const auto peers = consumer_->peers();
  ASSERT_EQ(peers.size(), 1u);
  const bool shared = GetParam().name == "shm";
  EXPECT_EQ(peers[0].lanes.find("sysv") != std::string::npos, shared) << peers[0].lanes;
  EXPECT_TRUE(soon([&] { return consumer_->stats().bytes_pulled == kBytes; }));
  EXPECT_EQ(consumer_->stats().gets > 0, shared);
  EXPECT_EQ(peer.finish(), 0);
  EXPECT_TRUE(soon([this] { return downs_ == 1; }));
}

TEST_P(PeerProcessTest, KilledInTheMiddle) {
  std::mt19937 random(3);
  for (int round = 0; round < 4; ++round) {
    open_consumer();
    PeerProcess peer(arguments());
    connect(peer);
    const TimePoint deadline = in(seconds(60));
    std::vector<Outcome> outcomes;
    for (uint64_t bytes = 1u << 20; bytes <= kBytes; bytes *= 2)
      outcomes.push_back(pull(peer, bytes, deadline));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 10'000));
    peer.end(SIGKILL);
    const TimePoint killed = Clock::now();
    for (const Outcome& outcome : outcomes) {
      const Status status = outcome.wait(seconds(70));
      EXPECT_LT(outcome.when(), deadline);
      EXPECT_LT(outcome.when() - killed, seconds(20));
      if (!status) {
        EXPECT_EQ(status.error().code, Errc::unavailable) << status.error().message();
      }
    }
    expect_quiet();
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.count(), 1);
    const Status after = pull(peer, 1000, in(seconds(5))).wait();
    ASSERT_FALSE(after.has_value());
    EXPECT_EQ(after.error().code, Errc::unavailable);
    consumer_.reset();
  }
}

TEST_P(PeerProcessTest, StoppedInTheMiddle) {
  open_consumer([](TransportOptions& o) { o.ping_timeout_ms = 20'000; });
  PeerProcess peer(arguments());
  connect(peer);
  peer.stop();
  const TimePoint deadline = in(milliseconds(700));
  std::vector<Outcome> outcomes;
  for (const uint64_t bytes : {4096ull, 1ull << 20, 64ull << 20})
    outcomes.push_back(pull(peer, bytes, deadline));
  for (const Outcome& outcome : outcomes) {
    const Status status = outcome.wait(seconds(30));
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, Errc::deadline_exceeded) << status.error().message();
    EXPECT_LT(outcome.when() - deadline, seconds(10));
  }
  peer.signal(SIGCONT);
  expect_quiet();
  if (consumer_->peers().empty()) connect(peer);
  const Status again = pull(peer, 1u << 20, in(seconds(30))).wait(seconds(40));
  EXPECT_TRUE(again.has_value()) << again.error().message();
}

TEST_P(PeerProcessTest, StoppedWhileBytesMove) {
  std::mt19937 random(4);
  open_consumer([](TransportOptions& o) { o.ping_timeout_ms = 20'000; });
  for (int round = 0; round < 3; ++round) {
    PeerArguments a = arguments();
    a.generation = static_cast<uint64_t>(round) + 1;
    PeerProcess peer(a);
    connect(peer);
    const TimePoint deadline = in(milliseconds(700));
    std::vector<Outcome> outcomes;
    for (int i = 0; i < 4; ++i) outcomes.push_back(pull(peer, kBytes, deadline));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8'000));
    peer.stop();
    for (const Outcome& outcome : outcomes) {
      const Status status = outcome.wait(seconds(30));
      EXPECT_LT(outcome.when() - deadline, seconds(10));
      if (!status) {
        EXPECT_TRUE(status.error().code == Errc::deadline_exceeded ||
                    status.error().code == Errc::unavailable)
            << status.error().message();
      }
    }
    peer.signal(SIGCONT);
    expect_quiet();
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.count(), 1);
  }
}

TEST_P(PeerProcessTest, StoppedPeerIsLostByItsSilence) {
  open_consumer([](TransportOptions& o) {
    o.ping_interval_ms = 100;
    o.ping_timeout_ms = 600;
  });
  PeerProcess peer(arguments());
  connect(peer);
  peer.stop();
  const TimePoint stopped = Clock::now();
  const Outcome outcome = pull(peer, kBytes, in(seconds(60)));
  const Status status = outcome.wait(seconds(70));
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, Errc::unavailable) << status.error().message();
  EXPECT_LT(outcome.when() - stopped, seconds(20));
  EXPECT_TRUE(soon([this] { return downs_ == 1; }));
  EXPECT_TRUE(soon([this] { return consumer_->stats().peers_silent == 1; }));
  expect_quiet();
}

// Field reports B09, B10: a producer that is killed and comes back on its address, again and again.
TEST_P(PeerProcessTest, RestartedOnTheSameAddress) {
  open_consumer();
  PeerArguments a = arguments();
  a.bytes = 2u << 20;
  RegionDescriptor former;
  for (uint64_t generation = 1; generation <= 6; ++generation) {
    a.generation = generation;
    PeerProcess peer(a);
    ASSERT_TRUE(peer.started()) << peer.error();
    a.port = peer.port();
    if (generation > 1) {
      const auto wrong = connect_to(*consumer_, peer.port(), former.owner);
      ASSERT_FALSE(wrong.has_value());
      EXPECT_EQ(wrong.error().code, Errc::stale_generation) << wrong.error().message();
    }
    connect(peer);
    const Status status = pull(peer, a.bytes, in(seconds(30))).wait(seconds(40));
    ASSERT_TRUE(status.has_value()) << status.error().message();
    EXPECT_TRUE(has_pattern(target_.memory.data, a.bytes, generation));
    former = peer.descriptor();
    peer.end(SIGKILL);
    EXPECT_TRUE(soon([&] { return downs_ == static_cast<int>(generation); }));
  }
}

/// A network namespace joined to ours by a veth pair; nothing where the kernel refuses.
class Namespace {
 public:
  Namespace()
      : name_("cedar" + std::to_string(::getpid())),
        veth_("cv" + std::to_string(::getpid() % 100'000)) {
    good_ = run("ip netns add " + name_) &&
            run("ip link add " + veth_ + "a type veth peer name " + veth_ + "b netns " + name_) &&
            run("ip addr add " + ours() + "/24 dev " + veth_ + "a") &&
            run("ip link set " + veth_ + "a up") &&
            run("ip -n " + name_ + " addr add " + theirs() + "/24 dev " + veth_ + "b") &&
            run("ip -n " + name_ + " link set " + veth_ + "b up") &&
            run("ip -n " + name_ + " link set lo up");
  }
  ~Namespace() {
    run("ip link del " + veth_ + "a");
    run("ip netns del " + name_);
  }
  Namespace(const Namespace&) = delete;
  Namespace& operator=(const Namespace&) = delete;

  bool good() const { return good_; }
  std::string ours() const { return subnet() + "1"; }
  std::string theirs() const { return subnet() + "2"; }
  std::string our_device() const { return veth_ + "a"; }
  std::string their_device() const { return veth_ + "b"; }
  std::vector<std::string> prefix() const { return {"ip", "netns", "exec", name_}; }
  bool cut() const { return run("ip link set " + veth_ + "a down"); }

 private:
  static bool run(const std::string& command) {
    return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
  }
  std::string subnet() const { return "10.231." + std::to_string(::getpid() % 250) + "."; }
  std::string name_, veth_;
  bool good_ = false;
};

TEST(PeerProcessNetwork, ACutLinkIsNoticedByPings) {
  Namespace network;
  if (!network.good()) GTEST_SKIP() << "this machine does not allow network namespaces";
  TransportOptions options;
  options.identity = {NodeId(2), 1};
  options.listen_host = network.ours();
  options.ping_interval_ms = 100;
  options.ping_timeout_ms = 2000;
  auto consumer = make_ucx_transport(options, {"tcp", network.our_device()});
  ASSERT_TRUE(consumer.has_value()) << consumer.error().message();
  const auto target = (*consumer)->allocate(64u << 20);
  ASSERT_TRUE(target.has_value());
  PeerArguments a;
  a.program = CEDAR_TRANSPORT_PEER;
  a.host = network.theirs();
  a.tls = "tcp";
  a.devices = network.their_device();
  a.prefix = network.prefix();
  PeerProcess peer(a);
  ASSERT_TRUE(peer.started()) << peer.error();
  auto connected = std::make_shared<std::promise<Result<PeerInfo>>>();
  (*consumer)->connect(
      {network.theirs(), peer.port()}, peer.descriptor().owner, in(seconds(20)),
      [connected](Result<PeerInfo> info) { connected->set_value(std::move(info)); });
  const auto info = connected->get_future().get();
  ASSERT_TRUE(info.has_value()) << info.error().message();

  const auto pull = [&](milliseconds limit) {
    PullRequest request;
    request.source = peer.descriptor();
    request.target = {{target->id, 0}};
    request.deadline = in(limit);
    request.release_lease = false;
    Outcome outcome;
    EXPECT_TRUE((*consumer)->pull(request, outcome.callback()).has_value());
    return outcome;
  };
  const Status whole = pull(seconds(60)).wait(seconds(70));
  ASSERT_TRUE(whole.has_value()) << whole.error().message();
  EXPECT_TRUE(has_pattern(target->memory.data, 64u << 20, 1));

  const TimePoint deadline = in(milliseconds(400));
  const Outcome short_one = pull(milliseconds(400));
  const Outcome long_one = pull(seconds(60));
  std::this_thread::sleep_for(milliseconds(3));
  ASSERT_TRUE(network.cut());
  const TimePoint cut = Clock::now();
  const Status by_deadline = short_one.wait(seconds(30));
  const Status by_silence = long_one.wait(seconds(30));
  EXPECT_LT(short_one.when() - deadline, seconds(10));
  EXPECT_LT(long_one.when() - cut, seconds(20));
  for (const Status& status : {by_deadline, by_silence}) {
    if (!status) {
      EXPECT_TRUE(status.error().code == Errc::unavailable ||
                  status.error().code == Errc::deadline_exceeded)
          << status.error().message();
    }
  }
  EXPECT_TRUE(soon([&] { return (*consumer)->stats().peers_ready == 0; }));
  std::memset(target->memory.data, 0x3C, 64u << 20);
  std::this_thread::sleep_for(milliseconds(150));
  for (uint64_t i = 0; i < 64u << 20; i += 4096) ASSERT_EQ(target->memory.data[i], std::byte{0x3C});
}

}  // namespace
}  // namespace cedar::test
