#pragma once
// The back ends that one suite runs on, and pairs of connected transports.

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <future>
#include <mutex>
#include <random>

#include "tests/transport/fault_link.h"
#include "transport/loopback.h"
#include "transport/node_transport.h"
#include "transport/ucx.h"

namespace cedar::test {

using namespace cedar::transport;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct TransportBackend {
  std::string name;
  bool ucx = false;
  bool native_get = false;
  std::string tls;  // of UCX
};

inline void PrintTo(const TransportBackend& backend, std::ostream* out) { *out << backend.name; }

inline const std::vector<TransportBackend>& transport_backends() {
  static const std::vector<TransportBackend> backends = {
    {"loopback_get", false, true, ""},
    {"loopback_message", false, false, ""},
#if !defined(__SANITIZE_THREAD__)  // Debian's UCX is not instrumented: every report would be false
    {"ucx_shm", true, true, "sysv,posix,tcp,self"},
    {"ucx_tcp", true, false, "tcp"},
#endif
  };
  return backends;
}

inline std::unique_ptr<Link> make_link(const TransportBackend& backend,
                                       const std::shared_ptr<LoopbackHub>& hub) {
  if (!backend.ucx) return make_loopback_link(hub, backend.native_get);
  UcxOptions ucx;
  ucx.tls = backend.tls;
  ucx.net_devices = backend.native_get ? "" : "lo";
  auto link = make_ucx_link(ucx);
  EXPECT_TRUE(link.has_value()) << (link ? "" : link.error().message());
  return link ? std::move(*link) : nullptr;
}

inline TimePoint in(milliseconds time) { return Clock::now() + time; }

/// A status that a callback on another thread delivers, how often, and when.
class Outcome {
 public:
  Completion callback() {
    return [state = state_](const Status& status) {
      std::lock_guard lock(state->mutex);
      ++state->count;
      state->status = status;
      state->when = Clock::now();
      state->changed.notify_all();
    };
  }
  /// internal when nothing came within `limit`.
  Status wait(milliseconds limit = seconds(20)) const {
    std::unique_lock lock(state_->mutex);
    if (!state_->changed.wait_for(lock, limit, [this] { return state_->count > 0; }))
      return make_error(Errc::internal, "no callback");
    return state_->status;
  }
  int count() const {
    std::lock_guard lock(state_->mutex);
    return state_->count;
  }
  TimePoint when() const {
    std::lock_guard lock(state_->mutex);
    return state_->when;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int count = 0;
    Status status;
    TimePoint when{};
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

template <class Condition>
bool soon(Condition condition, milliseconds limit = seconds(20)) {
  const TimePoint deadline = in(limit);
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

inline Result<PeerInfo> connect_to(Transport& from, uint16_t port,
                                   std::optional<NodeIdentity> expected = std::nullopt,
                                   milliseconds limit = seconds(10)) {
  auto promise = std::make_shared<std::promise<Result<PeerInfo>>>();
  from.connect({"127.0.0.1", port}, expected, in(limit),
               [promise](Result<PeerInfo> info) { promise->set_value(std::move(info)); });
  return promise->get_future().get();
}

inline void fill_random(std::byte* data, uint64_t bytes, uint32_t seed) {
  std::mt19937_64 random(seed);
  uint64_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    const uint64_t word = random();
    std::memcpy(data + i, &word, 8);
  }
  for (; i < bytes; ++i) data[i] = static_cast<std::byte>(random());
}

/// The transports of one test. `faults` of a transport can be told to lose or hold what it sends.
class Network {
 public:
  explicit Network(TransportBackend backend) : backend_(std::move(backend)) {}

  struct Node {
    std::unique_ptr<Transport> transport;
    std::shared_ptr<Faults> faults;
  };

  TransportOptions options(uint32_t node, uint64_t generation = 1) const {
    TransportOptions options;
    options.identity = {NodeId(node), generation};
    return options;
  }
  Node add(const TransportOptions& options) {
    Node node;
    node.faults = std::make_shared<Faults>();
    auto made = make_transport(options,
                               std::make_unique<FaultLink>(make_link(backend_, hub_), node.faults));
    EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().message());
    if (made) node.transport = std::move(*made);
    return node;
  }
  Result<std::unique_ptr<Transport>> try_add(const TransportOptions& options) {
    return make_transport(options, make_link(backend_, hub_));
  }

 private:
  TransportBackend backend_;
  std::shared_ptr<LoopbackHub> hub_ = make_loopback_hub();
};

}  // namespace cedar::test
