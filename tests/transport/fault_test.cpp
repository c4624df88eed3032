// What breaks, on every back end: silence, cuts, restarts, ends in the middle. Two nodes of one process.

#include "tests/transport/suite.h"

namespace cedar::test {
namespace {

class Fault : public TransportSuite {
 protected:
  /// Pulls of the region's first bytes, each to its own place, all under one lease.
  std::vector<Outcome> start_pulls(size_t count, uint64_t bytes, milliseconds limit) {
    std::vector<Outcome> outcomes;
    const auto source = offer({{0, bytes, {}}});
    for (size_t i = 0; i < count; ++i) {
      auto wanted = request(source, i * bytes, limit);
      wanted.release_lease = false;
      outcomes.push_back(pull(wanted));
    }
    return outcomes;
  }
  static void fast_pings(TransportOptions& options) {
    options.ping_interval_ms = 50;
    options.ping_timeout_ms = 1500;
  }
};
CEDAR_EACH_TRANSPORT(Fault);

TEST_P(Fault, DeadlineFiresWhenDataDoesNotCome) {
  open();
  producer_.faults->cut = true;
  std::memset(target_.memory.data, 0x77, kBytes);
  const TimePoint deadline = in(milliseconds(300));
  const Outcome outcome = start_pulls(1, 2u << 20, milliseconds(300))[0];
  expect_error(outcome.wait(), Errc::deadline_exceeded);
  EXPECT_GE(outcome.when() + milliseconds(5), deadline);
  if (!GetParam().native_get) {
    EXPECT_EQ(target_.memory.data[0], std::byte{0x77});
  }
  EXPECT_TRUE(soon([&] { return consumer().stats().pulls_unfinished == 0; }));
}

// Field report B03: bytes that arrive after a pull has ended must not reach its target, which is someone else's by then.
TEST_P(Fault, LateDataOfACancelledPullIsDropped) {
  if (GetParam().native_get) GTEST_SKIP() << "the owner sends nothing";
  open();
  producer_.faults->hold_data = true;
  const auto source = offer({{0, 3u << 20, {}}});
  Outcome outcome;
  const auto transfer = consumer().pull(request(source), outcome.callback());
  ASSERT_TRUE(transfer.has_value());
  ASSERT_TRUE(soon([&] { return consumer().stats().parts_requested == 3; }));
  consumer().cancel(*transfer);
  expect_error(outcome.wait(), Errc::cancelled);
  std::memset(target_.memory.data, 0x55, kBytes);  // the next owner's bytes
  producer_.faults->hold_data = false;
  ASSERT_TRUE(soon([&] { return consumer().stats().late_messages == 3; }));
  for (uint64_t i = 0; i < 3u << 20; i += 4096)
    ASSERT_EQ(target_.memory.data[i], std::byte{0x55}) << i;
  EXPECT_EQ(outcome.count(), 1);
  // The connection has not suffered.
  expect_good(pull(request(source)).wait());
  expect_pulled(source);
}

TEST_P(Fault, APartitionIsNoticedAndEveryPullEnds) {
  open(fast_pings);
  auto before = start_pulls(2, 1u << 20, seconds(30));
  for (const Outcome& outcome : before) expect_good(outcome.wait());
  producer_.faults->cut = true;
  consumer_.faults->cut = true;
  const TimePoint cut = Clock::now();
  auto outcomes = start_pulls(4, 1u << 20, seconds(30));
  for (const Outcome& outcome : outcomes) {
    expect_error(outcome.wait(), Errc::unavailable);
    EXPECT_LT(outcome.when() - cut, seconds(10));
    EXPECT_EQ(outcome.count(), 1);
  }
  EXPECT_TRUE(soon([&] { return downs(1).size() == 1 && downs(2).size() == 1; }));
  EXPECT_TRUE(soon([&] { return consumer().stats().peers_silent == 1; }));
  EXPECT_NE(downs(2)[0].context.find("no sign of life"), std::string::npos) << downs(2)[0].context;
  EXPECT_TRUE(consumer().peers().empty());
  // It heals: a new connection works.
  producer_.faults->cut = false;
  consumer_.faults->cut = false;
  ASSERT_TRUE(connect_to(consumer(), producer().listen_port()).has_value());
  const auto source = offer({{0, 1u << 20, {}}});
  expect_good(pull(request(source)).wait());
}

TEST_P(Fault, ASlowPeerThatAnswersPingsIsKept) {
  open(fast_pings);
  std::this_thread::sleep_for(milliseconds(2000));
  EXPECT_EQ(consumer().stats().peers_ready, 1u);
  EXPECT_EQ(producer().stats().peers_ready, 1u);
}

// Field report B28: one broken transfer among eight is one broken transfer.
TEST_P(Fault, OneFailedSendFailsOnePull) {
  if (GetParam().native_get) GTEST_SKIP() << "the owner sends nothing";
  open();
  producer_.faults->fail_data = 1;
  auto outcomes = start_pulls(8, 500'000, seconds(30));
  int failed = 0;
  for (const Outcome& outcome : outcomes) {
    if (const Status status = outcome.wait(); !status) {
      ++failed;
      expect_error(status, Errc::io_error);
    }
  }
  EXPECT_EQ(failed, 1);
  EXPECT_TRUE(downs(2).empty());
}

TEST_P(Fault, LeasesEndOnce) {
  open();
  const auto released = offer({{0, 100, {}}});
  expect_good(pull(request(released)).wait());
  ASSERT_TRUE(wait_lease_ends(1));
  consumer().release(released.owner, released.lease);
  ASSERT_TRUE(soon([&] { return producer().stats().releases_unknown == 1; }));

  offer({{0, 100, {}}}, false, milliseconds(50));  // nobody comes
  ASSERT_TRUE(wait_lease_ends(2));

  const auto revoked = offer({{0, 100, {}}});
  producer().revoke(revoked.lease);
  producer().revoke(revoked.lease);
  ASSERT_TRUE(wait_lease_ends(3));
  expect_error(pull(request(revoked)).wait(), Errc::not_found);

  const std::vector<LeaseEnd> expected = {LeaseEnd::released, LeaseEnd::expired, LeaseEnd::revoked};
  EXPECT_EQ(lease_ends(), expected);
  const auto stats = producer().stats();
  EXPECT_EQ(stats.leases_live, 0u);
  EXPECT_EQ(stats.leases_granted, 3u);
  EXPECT_EQ(stats.leases_released + stats.leases_expired + stats.leases_revoked, 3u);
  EXPECT_TRUE(soon([&] { return producer().unregister(source_.id).has_value(); }));
}

TEST_P(Fault, ALeaseInUseEndsAfterItsReader) {
  if (GetParam().native_get) GTEST_SKIP() << "the owner does not see its readers";
  open();
  producer_.faults->hold_data = true;
  const auto source = offer({{0, 100'000, {}}});
  const Outcome outcome = pull(request(source));
  ASSERT_TRUE(soon([&] { return consumer().stats().parts_requested == 1; }));
  std::this_thread::sleep_for(milliseconds(100));
  producer().revoke(source.lease);
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_TRUE(lease_ends().empty());
  expect_error(producer().unregister(source_.id), Errc::overloaded);
  producer_.faults->hold_data = false;
  expect_good(outcome.wait());
  EXPECT_TRUE(wait_lease_ends(1));
}

TEST_P(Fault, ReadsInPlaceOfAnExpiredLeaseDoNotCount) {
  if (!GetParam().native_get) GTEST_SKIP() << "the owner refuses";
  open();
  const auto source = offer({{0, 100'000, {}}}, false, milliseconds(30));
  ASSERT_TRUE(wait_lease_ends(1));
  expect_error(pull(request(source)).wait(), Errc::not_found);
}

TEST_P(Fault, AReturnedNodeIsTakenAndItsFormerSelfRefused) {
  open();
  const auto old_source = offer({{0, 1000, {}}});
  const uint16_t port = producer().listen_port();
  producer().shutdown();
  ASSERT_TRUE(soon([&] { return downs(2).size() == 1; }));
  TransportOptions again = network_.options(1, 2);
  again.listen_port = port;
  auto second = network_.try_add(again);
  ASSERT_TRUE(second.has_value()) << second.error().message();

  const auto wrong = connect_to(consumer(), port, NodeIdentity{NodeId(1), 1});
  ASSERT_FALSE(wrong.has_value());
  EXPECT_EQ(wrong.error().code, Errc::stale_generation);
  const auto right = connect_to(consumer(), port, NodeIdentity{NodeId(1), 2});
  ASSERT_TRUE(right.has_value()) << right.error().message();
  EXPECT_EQ(right->identity.generation, 2u);
  // A descriptor of the former life.
  expect_error(pull(request(old_source)).wait(), Errc::stale_generation);
  // The former life itself, should it still run somewhere.
  auto ghost = network_.try_add(network_.options(1, 1));
  ASSERT_TRUE(ghost.has_value());
  const auto refused = connect_to(**ghost, consumer().listen_port());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::stale_generation) << refused.error().message();
  EXPECT_TRUE(soon([&] { return consumer().stats().stale_generations >= 1; }));
}

TEST_P(Fault, ANewLifeEndsTheConnectionOfTheOld) {
  open();
  auto reborn = network_.try_add(network_.options(2, 5));
  ASSERT_TRUE(reborn.has_value());
  ASSERT_TRUE(connect_to(**reborn, producer().listen_port()).has_value());
  ASSERT_TRUE(soon([&] { return downs(1).size() == 1 && downs(2).size() == 1; }));
  EXPECT_EQ(downs(1)[0].code, Errc::stale_generation);
  EXPECT_EQ(producer().peers().size(), 1u);
}

TEST_P(Fault, ConnectionsThatCannotBe) {
  open();
  const auto nobody = connect_to(consumer(), 1);
  ASSERT_FALSE(nobody.has_value());
  EXPECT_EQ(nobody.error().code, Errc::unavailable) << nobody.error().message();
  EXPECT_NE(nobody.error().context.find("127.0.0.1:1"), std::string::npos)
      << nobody.error().context;

  TransportOptions other = network_.options(3);
  other.cluster = "another";
  auto stranger = network_.try_add(other);
  ASSERT_TRUE(stranger.has_value());
  const auto refused = connect_to(**stranger, producer().listen_port());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::invalid_argument);
  EXPECT_NE(refused.error().context.find("another"), std::string::npos) << refused.error().context;

  // Field report B13: a peer that stops in the middle of the handshake.
  producer_.faults->cut = true;
  auto third = network_.try_add(network_.options(4));
  ASSERT_TRUE(third.has_value());
  const auto silent =
      connect_to(**third, producer().listen_port(), std::nullopt, milliseconds(200));
  ASSERT_FALSE(silent.has_value());
  EXPECT_EQ(silent.error().code, Errc::deadline_exceeded) << silent.error().message();
}

TEST_P(Fault, SmallMessagesComeInOrder) {
  open();
  constexpr uint32_t kCount = 20'000;
  for (uint32_t i = 0; i < kCount; ++i) {
    std::vector<std::byte> bytes(i % 700 == 0 ? 20'000 : 4 + i % 50);
    std::memcpy(bytes.data(), &i, 4);
    ASSERT_TRUE(
        soon([&] { return consumer().send(peer_, static_cast<uint16_t>(i), bytes).has_value(); }));
  }
  const auto received = [this] {
    std::lock_guard lock(mutex_);
    return messages_[1].size();
  };
  ASSERT_TRUE(soon([&] { return received() == kCount; })) << received();
  std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < kCount; ++i) {
    uint32_t number;
    std::memcpy(&number, messages_[1][i].second.data(), 4);
    ASSERT_EQ(number, i);
    ASSERT_EQ(messages_[1][i].first, static_cast<uint16_t>(i));
  }
}

TEST_P(Fault, UnsentMessagesAreBounded) {
  open([](TransportOptions& o) { o.queue_messages = 10; });
  consumer_.faults->cut = true;
  Outcome last;
  int taken = 0;
  for (; taken < 50; ++taken) {
    if (!consumer().send(peer_, 1, std::vector<std::byte>(10), last.callback())) break;
  }
  EXPECT_EQ(taken, 10);
  expect_error(consumer().send(peer_, 1, {}), Errc::overloaded);
  expect_error(consumer().send(peer_, 1, std::vector<std::byte>(100'000)), Errc::invalid_argument);
  consumer().shutdown();
  EXPECT_EQ(last.count(), 10);
}

TEST_P(Fault, ShutdownInTheMiddleEndsEverything) {
  open();
  auto outcomes = start_pulls(7, 1u << 20, seconds(30));
  offer({{0, 10, {}}});
  (GetParam().native_get ? consumer() : producer()).shutdown();
  consumer().shutdown();
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.count(), 1);
  producer().shutdown();
  EXPECT_EQ(lease_ends().size(), 2u);
  EXPECT_FALSE(consumer().pull({}, {}).has_value());
  expect_error(consumer().send(peer_, 1, {}), Errc::cancelled);
  EXPECT_FALSE(consumer().allocate(10).has_value());
}

}  // namespace
}  // namespace cedar::test
