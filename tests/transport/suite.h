#pragma once
// Base of the suites that run on every back end: two nodes, connected, with a region each.

#include "tests/transport/backends.h"

namespace cedar::test {

class TransportSuite : public ::testing::TestWithParam<TransportBackend> {
 protected:
  static constexpr uint64_t kBytes = 8u << 20;

  /// producer (node 1) and consumer (node 2), connected; `change` adapts the options of both.
  void open(const std::function<void(TransportOptions&)>& change = {}, uint64_t bytes = kBytes) {
    for (const uint32_t node : {1u, 2u}) {
      TransportOptions options = network_.options(node);
      options.handlers.on_message = [this, node](PeerId, uint16_t kind,
                                                 std::span<const std::byte> m) {
        std::lock_guard lock(mutex_);
        messages_[node].emplace_back(kind, std::vector<std::byte>(m.begin(), m.end()));
      };
      options.handlers.on_peer_down = [this, node](const PeerInfo&, const Error& error) {
        std::lock_guard lock(mutex_);
        downs_[node].push_back(error);
      };
      if (change) change(options);
      auto& slot = node == 1 ? producer_ : consumer_;
      slot = network_.add(options);
      ASSERT_NE(slot.transport, nullptr);
    }
    source_ = allocate(producer(), bytes);
    target_ = allocate(consumer(), bytes);
    fill_random(source_.memory.data, bytes, 11);
    const auto peer = connect_to(consumer(), producer().listen_port());
    ASSERT_TRUE(peer.has_value()) << peer.error().message();
    peer_ = peer->peer;
    ASSERT_TRUE(soon([this] { return producer().stats().peers_ready == 1; }));
  }

  static Region allocate(Transport& transport, uint64_t bytes) {
    const auto region = transport.allocate(bytes);
    EXPECT_TRUE(region.has_value()) << region.error().message();
    return region ? *region : Region{};
  }

  Transport& producer() { return *producer_.transport; }
  Transport& consumer() { return *consumer_.transport; }

  /// Offers ranges of the source under a lease of ten seconds and counts how it ends.
  RegionDescriptor offer(std::vector<ByteRange> ranges, bool checksums = false,
                         milliseconds lease = seconds(60)) {
    OfferRequest request;
    request.region = source_.id;
    request.ranges = std::move(ranges);
    request.checksums = checksums;
    request.lease_deadline = in(lease);
    auto descriptor = producer().offer(request, [this](LeaseId, LeaseEnd how) {
      std::lock_guard lock(mutex_);
      lease_ends_.push_back(how);
    });
    EXPECT_TRUE(descriptor.has_value()) << descriptor.error().message();
    // As the control plane does.
    auto parsed = parse_descriptor(serialise(*descriptor));
    EXPECT_TRUE(parsed.has_value() && *parsed == *descriptor);
    return *descriptor;
  }
  RegionDescriptor publish(std::vector<ByteRange> ranges) {
    OfferRequest request;
    request.region = source_.id;
    request.ranges = std::move(ranges);
    const auto descriptor = producer().offer(request);
    EXPECT_TRUE(descriptor.has_value());
    return *descriptor;
  }

  /// Targets one behind the other from `offset`.
  PullRequest request(const RegionDescriptor& source, uint64_t offset = 0,
                      milliseconds limit = seconds(30)) const {
    PullRequest request;
    request.source = source;
    request.deadline = in(limit);
    for (const ByteRange& range : source.ranges) {
      request.target.push_back(LocalRange{target_.id, offset});
      offset += range.bytes;
    }
    return request;
  }
  Outcome pull(const PullRequest& request) {
    Outcome outcome;
    const auto transfer = consumer().pull(request, outcome.callback());
    EXPECT_TRUE(transfer.has_value()) << transfer.error().message();
    return outcome;
  }

  /// The target holds the ranges of `source` one behind the other from `offset`.
  void expect_pulled(const RegionDescriptor& source, uint64_t offset = 0) const {
    for (const ByteRange& range : source.ranges) {
      EXPECT_EQ(std::memcmp(target_.memory.data + offset, source_.memory.data + range.offset,
                            range.bytes),
                0)
          << range.bytes << " bytes at " << range.offset;
      offset += range.bytes;
    }
  }
  std::vector<LeaseEnd> lease_ends() const {
    std::lock_guard lock(mutex_);
    return lease_ends_;
  }
  bool wait_lease_ends(size_t count) {
    return soon([&] { return lease_ends().size() >= count; });
  }
  std::vector<Error> downs(uint32_t node) const {
    std::lock_guard lock(mutex_);
    const auto at = downs_.find(node);
    return at == downs_.end() ? std::vector<Error>{} : at->second;
  }
  void TearDown() override {
    // Handlers point here.
    if (consumer_.transport) consumer().shutdown();
    if (producer_.transport) producer().shutdown();
  }

  Network network_{GetParam()};
  Network::Node producer_, consumer_;
  Region source_, target_;
  PeerId peer_;  // the producer, seen by the consumer

  mutable std::mutex mutex_;
  std::vector<LeaseEnd> lease_ends_;
  std::unordered_map<uint32_t, std::vector<std::pair<uint16_t, std::vector<std::byte>>>> messages_;
  std::unordered_map<uint32_t, std::vector<Error>> downs_;
};

inline void expect_error(const Status& status, Errc code) {
  ASSERT_FALSE(status.has_value()) << "expected " << to_string(code);
  EXPECT_EQ(status.error().code, code) << status.error().message();
}
inline void expect_good(const Status& status) {
  EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message());
}

#define CEDAR_EACH_TRANSPORT(suite)                                                    \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, ::testing::ValuesIn(transport_backends()), \
                           [](const auto& backend) { return backend.param.name; })

}  // namespace cedar::test
