// What a pull delivers, on every back end.

#include "tests/transport/suite.h"

namespace cedar::test {
namespace {

class Pull : public TransportSuite {};
CEDAR_EACH_TRANSPORT(Pull);

TEST_P(Pull, SizesAroundEveryBoundary) {
  open();
  for (const uint64_t bytes : {1ull, 7ull, 4096ull, 8185ull, 65'537ull, 131'072ull, 131'073ull,
                               262'143ull, 1'048'576ull, 1'048'577ull, 3'000'001ull}) {
    SCOPED_TRACE(bytes);
    std::memset(target_.memory.data, 0xEE, kBytes);
    const auto source = offer({{13, bytes, {}}}, true);
    expect_good(pull(request(source, 5)).wait());
    expect_pulled(source, 5);
    EXPECT_EQ(target_.memory.data[4], std::byte{0xEE});
    EXPECT_EQ(target_.memory.data[5 + bytes], std::byte{0xEE});
  }
}

TEST_P(Pull, ScatteredRangesOfOddSizes) {
  open();
  std::vector<ByteRange> ranges;
  uint64_t at = 1, sum = 0;
  for (uint64_t i = 0; sum < 6u << 20; ++i) {
    const uint64_t bytes = 1 + (i * 7919) % 60'000;
    if (at + bytes > kBytes) break;
    ranges.push_back({at, bytes, {}});
    at += bytes + i % 3;  // some touch, some do not
    sum += bytes;
  }
  std::reverse(ranges.begin(), ranges.end());
  const auto source = offer(ranges, true);
  expect_good(pull(request(source, 3)).wait());
  expect_pulled(source, 3);
}

TEST_P(Pull, KvBlocksAreMergedIntoLargeMessages) {
  constexpr uint64_t kBlock = 113'920;
  constexpr uint64_t kCount = 64;
  open();
  std::vector<ByteRange> ranges;
  for (uint64_t i = 0; i < kCount; ++i) ranges.push_back({(kCount - 1 - i) * kBlock, kBlock, {}});
  const auto source = offer(ranges);
  expect_good(pull(request(source)).wait());
  expect_pulled(source);
  ASSERT_TRUE(soon([&] { return consumer().stats().bytes_pulled == kCount * kBlock; }));
  const auto stats = consumer().stats();
  EXPECT_LE(stats.parts_requested, kCount * kBlock / (1u << 20) + 1);
  EXPECT_EQ(GetParam().native_get, stats.gets > 0);
}

TEST_P(Pull, PublishedRegionsNeedNoLease) {
  open();
  const auto source = publish({{0, 100'000, {}}});
  for (int i = 0; i < 3; ++i) {
    expect_good(pull(request(source)).wait());
    expect_pulled(source);
  }
}

TEST_P(Pull, MemoryOfTheCaller) {
  open();
  std::vector<std::byte> memory(300'000);
  fill_random(memory.data(), memory.size(), 3);
  const auto region =
      producer().register_memory({memory.data(), memory.size(), MemoryKind::host, 0});
  ASSERT_TRUE(region.has_value()) << region.error().message();
  OfferRequest offered;
  offered.region = region->id;
  offered.ranges = {{1, 299'999, {}}};
  offered.checksums = true;
  const auto source = producer().offer(offered);
  ASSERT_TRUE(source.has_value());
  expect_good(pull(request(*source)).wait());
  EXPECT_EQ(std::memcmp(target_.memory.data, memory.data() + 1, 299'999), 0);
  // The producer may learn a moment later that its last message has gone.
  EXPECT_TRUE(soon([&] { return producer().unregister(region->id).has_value(); }));
}

TEST_P(Pull, ChangedBytesFailTheChecksum) {
  open();
  const auto source = offer({{0, 50'000, {}}, {100'000, 50'000, {}}}, true);
  source_.memory.data[149'999] ^= std::byte{1};
  const Status status = pull(request(source)).wait();
  expect_error(status, Errc::checksum_mismatch);
  EXPECT_NE(status.error().context.find("range 1"), std::string::npos) << status.error().context;
  // The lease is left for a second try.
  source_.memory.data[149'999] ^= std::byte{1};
  expect_good(pull(request(source)).wait());
  EXPECT_TRUE(wait_lease_ends(1));
  PullRequest unchecked = request(publish({{0, 10, {}}}));
  unchecked.source.ranges[0].crc32c = 1;
  unchecked.verify_checksums = false;
  expect_good(pull(unchecked).wait());
}

TEST_P(Pull, ManyAtATimeStayWithinTheWindow) {
  open([](TransportOptions& o) {
    o.window_parts = 2;
    o.window_bytes = 512u << 10;
    o.part_bytes = 256u << 10;
  });
  producer_.faults->hold_data = true;
  std::vector<Outcome> outcomes;
  for (uint64_t i = 0; i < 20; ++i)
    outcomes.push_back(pull(request(offer({{i * 300'000, 300'000, {}}}), i * 300'000)));
  if (!GetParam().native_get) {
    ASSERT_TRUE(soon([&] { return consumer().stats().pulls_unfinished == 20; }));
    EXPECT_EQ(consumer().stats().parts_requested, 2u);
  }
  producer_.faults->hold_data = false;
  for (const Outcome& outcome : outcomes) expect_good(outcome.wait());
  EXPECT_EQ(std::memcmp(target_.memory.data, source_.memory.data, 6'000'000), 0);
}

TEST_P(Pull, TooManyAreRefusedAtOnce) {
  open([](TransportOptions& o) { o.queue_pulls = 3; });
  producer_.faults->cut = true;  // no pull under a lease can end
  const auto source = offer({{0, 1000, {}}});
  std::vector<Outcome> outcomes;
  for (uint64_t i = 0; i < 3; ++i) outcomes.push_back(pull(request(source, i * 1000)));
  Outcome refused;
  const auto transfer = consumer().pull(request(source, 5000), refused.callback());
  ASSERT_FALSE(transfer.has_value());
  EXPECT_EQ(transfer.error().code, Errc::overloaded);
  consumer().disconnect(peer_);
  for (const Outcome& outcome : outcomes) expect_error(outcome.wait(), Errc::cancelled);
  EXPECT_EQ(refused.count(), 0);
}

TEST_P(Pull, WrongRequestsNameWhatIsWrong) {
  open();
  const auto good = publish({{0, 1000, {}}});
  PullRequest bad = request(good);
  bad.target[0].offset = kBytes - 999;
  expect_error(pull(bad).wait(), Errc::invalid_argument);
  bad = request(good);
  bad.target[0].region = RegionId(77);
  expect_error(pull(bad).wait(), Errc::not_found);
  bad = request(good);
  bad.target.clear();
  expect_error(pull(bad).wait(), Errc::invalid_argument);
  bad = request(good);
  bad.source.ranges[0].bytes = 0;
  expect_error(pull(bad).wait(), Errc::invalid_argument);
  bad = request(good);
  bad.source.owner.node = NodeId(9);
  expect_error(pull(bad).wait(), Errc::unavailable);
  bad = request(good);
  bad.deadline = Clock::now() - seconds(1);
  expect_error(pull(bad).wait(), Errc::deadline_exceeded);
  EXPECT_TRUE(soon([&] { return consumer().stats().pulls_unfinished == 0; }));
  expect_good(consumer().unregister(target_.id));  // no pull holds on to its target
}

// Field report B08: stale or out-of-range references are refused, each with its own counter.
TEST_P(Pull, WhatWasNotOfferedIsRefused) {
  open();
  auto source = offer({{1000, 1000, {}}});
  for (const ByteRange range :
       {ByteRange{999, 1000, {}}, ByteRange{1500, 501, {}}, ByteRange{kBytes - 5, 10, {}}}) {
    auto wrong = source;
    wrong.ranges = {range};
    expect_error(pull(request(wrong)).wait(), Errc::invalid_argument);
  }
  auto unknown = source;
  unknown.lease = LeaseId(1234);
  expect_error(pull(request(unknown)).wait(), Errc::not_found);
  unknown = source;
  unknown.lease = LeaseId(0);
  unknown.key.clear();  // ask the owner: of published memory, reads in place are not confirmed
  expect_error(pull(request(unknown)).wait(), Errc::not_found);  // not published
  unknown = source;
  unknown.region = RegionId(55);
  expect_error(pull(request(unknown)).wait(), Errc::not_found);
  // What leaves the region is refused before anything is read in place.
  const uint64_t outside = GetParam().native_get ? 2 : 3;
  EXPECT_TRUE(soon([&] {
    const auto refused = producer().stats().requests_refused;
    return refused[static_cast<size_t>(Errc::invalid_argument)] == outside &&
           refused[static_cast<size_t>(Errc::not_found)] == 3;
  }));
  expect_good(pull(request(source)).wait());
}

TEST_P(Pull, FromItself) {
  open();
  OfferRequest offered;
  offered.region = target_.id;
  offered.ranges = {{0, 4000, {}}, {5000, 1000, {}}};
  offered.checksums = true;
  offered.lease_deadline = in(seconds(60));
  fill_random(target_.memory.data, 6000, 4);
  std::promise<LeaseEnd> ended;
  const auto source =
      consumer().offer(offered, [&](LeaseId, LeaseEnd how) { ended.set_value(how); });
  ASSERT_TRUE(source.has_value()) << source.error().message();
  EXPECT_EQ(consumer().view(*source, 1).data(), target_.memory.data + 5000);
  expect_good(pull(request(*source, 10'000)).wait());
  EXPECT_EQ(std::memcmp(target_.memory.data + 10'000, target_.memory.data, 4000), 0);
  EXPECT_EQ(std::memcmp(target_.memory.data + 14'000, target_.memory.data + 5000, 1000), 0);
  EXPECT_EQ(ended.get_future().get(), LeaseEnd::released);
  expect_error(pull(request(*source, 10'000)).wait(), Errc::not_found);
}

/// Not by filling the machine until the kernel ends somebody.
TEST_P(Pull, MoreMemoryThanTheMachineHasIsRefused) {
  open();
  const auto region = consumer().allocate(uint64_t{1} << 50);
  ASSERT_FALSE(region.has_value());
  EXPECT_EQ(region.error().code, Errc::out_of_memory);
  EXPECT_NE(region.error().context.find("1125899906842624"), std::string::npos)
      << region.error().context;
}

/// Whoever reads in place is a reader like a pull: the lease does not end under it.
TEST_P(Pull, OwnMemoryInPlaceHoldsItsLease) {
  open();
  const auto source = offer({{100, 5000, {}}, {9000, 1, {}}});
  {
    const auto bytes = producer().read_in_place(source);
    ASSERT_TRUE(bytes.has_value()) << bytes.error().message();
    EXPECT_EQ((*bytes)[0].data(), source_.memory.data + 100);
    EXPECT_EQ((*bytes)[1].size(), 1u);
    producer().revoke(source.lease);
    // Everything posted until now has run when this returns, and the lease is still there.
    allocate(producer(), 64);
    EXPECT_TRUE(lease_ends().empty());
    expect_error(producer().read_in_place(source).has_value()
                     ? Status{}
                     : Status{producer().read_in_place(source).error()},
                 Errc::not_found);
  }
  ASSERT_TRUE(wait_lease_ends(1));
  EXPECT_EQ(lease_ends().at(0), LeaseEnd::revoked);
  const auto foreign = consumer().read_in_place(source);
  ASSERT_FALSE(foreign.has_value());
  EXPECT_EQ(foreign.error().code, Errc::unsupported);
  auto stale = source;
  ++stale.owner.generation;
  const auto other_life = producer().read_in_place(stale);
  ASSERT_FALSE(other_life.has_value());
  EXPECT_EQ(other_life.error().code, Errc::stale_generation);
}

TEST_P(Pull, ViewWhereOwnerAndConsumerShareMemory) {
  open();
  const auto source = offer({{100, 5000, {}}});
  const auto view = consumer().view(source, 0);
  if (GetParam().ucx) {
    EXPECT_TRUE(view.empty());
    return;
  }
  ASSERT_EQ(view.size(), 5000u);
  EXPECT_EQ(view.data(), source_.memory.data + 100);
  EXPECT_TRUE(consumer().view(source, 1).empty());
  consumer().release(source.owner, source.lease);
  EXPECT_TRUE(wait_lease_ends(1));
  EXPECT_EQ(lease_ends()[0], LeaseEnd::released);
}

}  // namespace
}  // namespace cedar::test
