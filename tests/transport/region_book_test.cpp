#include "transport/region_book.h"

#include <gtest/gtest.h>

namespace cedar::transport {
namespace {

using std::chrono::seconds;

class RegionBookTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 1000;

  RegionBookTest() : memory_(kBytes) {
    region_ = book_.add(LinkRegion{{memory_.data(), kBytes, MemoryKind::host, 0}, {}, 0});
  }
  LeaseId grant(std::vector<ByteRange> ranges, TimePoint deadline) {
    const auto lease = book_.grant(region_, std::move(ranges), deadline,
                                   [this](LeaseId, LeaseEnd how) { ends_.push_back(how); });
    EXPECT_TRUE(lease.has_value());
    return *lease;
  }
  Errc read(LeaseId lease, uint64_t offset, uint64_t bytes) {
    const ByteRange range{offset, bytes, {}};
    const auto segments = book_.start_reading(region_, lease, {&range, 1}, now_);
    return segments ? Errc::ok : segments.error().code;
  }
  const std::vector<LeaseEnd>& ends() {
    for (const auto& callback : book_.take_ended()) callback();
    return ends_;
  }

  std::vector<std::byte> memory_;
  RegionBook book_;
  RegionId region_;
  TimePoint now_ = TimePoint{} + seconds(100);
  std::vector<LeaseEnd> ends_;
};

TEST_F(RegionBookTest, OnlyWhatWasOfferedIsRead) {
  const LeaseId lease = grant({{300, 100, {}}, {100, 100, {}}, {200, 50, {}}}, now_ + seconds(1));
  EXPECT_EQ(read(lease, 100, 150), Errc::ok);  // over two that touch
  EXPECT_EQ(read(lease, 399, 1), Errc::ok);
  EXPECT_EQ(read(lease, 99, 2), Errc::invalid_argument);
  EXPECT_EQ(read(lease, 240, 61), Errc::invalid_argument);
  EXPECT_EQ(read(lease, 399, 2), Errc::invalid_argument);
  EXPECT_EQ(read(lease, 0, 0), Errc::invalid_argument);
  EXPECT_EQ(read(lease, ~0ull, 2), Errc::invalid_argument);
  EXPECT_EQ(read(lease, 2, ~0ull), Errc::invalid_argument);
  EXPECT_EQ(read(LeaseId(0), 0, 1), Errc::not_found);
  book_.publish(region_);
  EXPECT_EQ(read(LeaseId(0), 0, kBytes), Errc::ok);
}

/// What was read without asking has to be of what was offered, too.
TEST_F(RegionBookTest, ReadsThatNobodySawAreChecked) {
  const LeaseId lease = grant({{100, 100, {}}, {300, 10, {}}}, now_ + seconds(5));
  const auto check = [&](RegionId region, uint64_t offset, uint64_t bytes) {
    const std::vector<ByteRange> ranges = {{100, 1, {}}, {offset, bytes, {}}};
    const Status status = book_.check(region, lease, ranges, now_);
    return status ? Errc::ok : status.error().code;
  };
  EXPECT_EQ(check(region_, 100, 100), Errc::ok);
  EXPECT_EQ(check(region_, 309, 1), Errc::ok);
  EXPECT_EQ(check(region_, 150, 51), Errc::invalid_argument);
  EXPECT_EQ(check(region_, 0, 10), Errc::invalid_argument);
  EXPECT_EQ(check(region_, 100, 0), Errc::invalid_argument);
  EXPECT_EQ(check(region_, 2, ~0ull), Errc::invalid_argument);
  EXPECT_EQ(check(RegionId(99), 100, 1), Errc::not_found);
}

TEST_F(RegionBookTest, ExpiresAtItsDeadlineAndNotBefore) {
  const LeaseId lease = grant({{0, 10, {}}}, now_ + seconds(5));
  EXPECT_EQ(*book_.next_expiry(), now_ + seconds(5));
  book_.expire(now_ + seconds(4));
  EXPECT_TRUE(ends().empty());
  EXPECT_TRUE(book_.check(region_, lease, {}, now_ + seconds(4)).has_value());
  EXPECT_FALSE(book_.check(region_, lease, {}, now_ + seconds(5)).has_value());
  book_.expire(now_ + seconds(5));
  EXPECT_EQ(ends(), std::vector{LeaseEnd::expired});
  EXPECT_FALSE(book_.next_expiry().has_value());
}

TEST_F(RegionBookTest, TheEndWaitsForReadersAndComesOnce) {
  const LeaseId lease = grant({{0, 10, {}}}, now_ + seconds(5));
  ASSERT_EQ(read(lease, 0, 10), Errc::ok);
  ASSERT_EQ(read(lease, 5, 5), Errc::ok);
  book_.end(lease, LeaseEnd::released);
  book_.end(lease, LeaseEnd::revoked);
  book_.expire(now_ + seconds(9));
  EXPECT_TRUE(ends().empty());
  EXPECT_EQ(read(lease, 0, 1), Errc::not_found);  // nothing new begins
  EXPECT_EQ(book_.remove(region_).error().code, Errc::overloaded);
  book_.finish_reading(region_, lease);
  EXPECT_TRUE(ends().empty());
  book_.finish_reading(region_, lease);
  EXPECT_EQ(ends(), std::vector{LeaseEnd::released});
  EXPECT_TRUE(book_.remove(region_).has_value());
  EXPECT_EQ(book_.remove(region_).error().code, Errc::not_found);
}

TEST_F(RegionBookTest, EndOfTheTransportEndsLeases) {
  grant({{0, 10, {}}}, now_ + seconds(5));
  grant({{0, 10, {}}}, now_ + seconds(5));
  book_.end_all();
  const std::vector expected(2, LeaseEnd::shutdown);
  EXPECT_EQ(ends(), expected);
  EXPECT_EQ(book_.grant(region_, {{0, 10, {}}}, now_, {}).error().code, Errc::cancelled);
}

// A lease is at most one of released, expired, revoked, in whatever order the events come.
TEST_F(RegionBookTest, CountsAddUp) {
  for (int i = 0; i < 1000; ++i) {
    const LeaseId lease = grant({{0, 10, {}}}, now_ + seconds(i % 7));
    if (i % 3 == 0) book_.end(lease, LeaseEnd::released);
    if (i % 5 == 0) book_.end(lease, LeaseEnd::revoked);
  }
  book_.expire(now_ + seconds(7));
  TransportStats stats;
  book_.fill(stats);
  EXPECT_EQ(stats.leases_live, 0u);
  EXPECT_EQ(stats.leases_released + stats.leases_expired + stats.leases_revoked, 1000u);
  EXPECT_EQ(ends().size(), 1000u);
  EXPECT_TRUE(book_.remove(region_).has_value());
}

}  // namespace
}  // namespace cedar::transport
