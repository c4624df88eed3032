#include "transport/descriptor.h"

#include <gtest/gtest.h>

#include <random>

#include "transport/messages.h"

namespace cedar::transport {
namespace {

RegionDescriptor example() {
  RegionDescriptor d;
  d.owner = {NodeId(7), 42};
  d.region = RegionId(3);
  d.lease = LeaseId(99);
  d.key = {std::byte{1}, std::byte{2}, std::byte{3}};
  d.ranges = {{0, 113'920, 0xDEADBEEF}, {1u << 20, 1, {}}};
  return d;
}

TEST(RegionDescriptor, SurvivesTheWire) {
  const auto parsed = parse_descriptor(serialise(example()));
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message();
  EXPECT_EQ(*parsed, example());
  EXPECT_EQ(parsed->bytes(), 113'921u);
}

TEST(RegionDescriptor, EveryTruncationAndExtensionIsRefused) {
  const auto bytes = serialise(example());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto parsed = parse_descriptor(std::span(bytes).first(size));
    ASSERT_FALSE(parsed.has_value()) << size;
    EXPECT_EQ(parsed.error().code, Errc::invalid_argument);
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parse_descriptor(longer).has_value());
}

TEST(RegionDescriptor, RangesMustBeRanges) {
  const auto refused = [](uint64_t offset, uint64_t bytes) {
    RegionDescriptor d = example();
    d.ranges = {{offset, bytes, {}}, {0, 1, {}}};
    return !parse_descriptor(serialise(d)).has_value();
  };
  EXPECT_TRUE(refused(0, 0));
  EXPECT_TRUE(refused(~0ull, 1));
  EXPECT_TRUE(refused(0, ~0ull));
  EXPECT_TRUE(refused(1, 1ull << 62));  // the sum
  EXPECT_FALSE(refused(5, 1u << 20));
}

// Damaged descriptors and messages never crash, and what parses is what was written.
TEST(RegionDescriptor, RandomDamage) {
  std::mt19937 random(1);
  const auto good = serialise(example());
  int parsed_count = 0;
  for (int round = 0; round < 200'000; ++round) {
    auto bytes = good;
    const size_t flips = 1 + random() % 4;
    for (size_t i = 0; i < flips; ++i)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 20));
    const auto parsed = parse_descriptor(bytes);
    if (!parsed) continue;
    ++parsed_count;
    ASSERT_EQ(serialise(*parsed).size(), bytes.size());
  }
  EXPECT_GT(parsed_count, 0);
}

TEST(Messages, RandomDamage) {
  std::mt19937 random(2);
  PartRequest request;
  request.ranges = {{1, 2, {}}, {3, 4, {}}};
  Confirm confirm;
  confirm.ranges = request.ranges;
  Hello hello;
  hello.cluster = "cedar";
  const std::vector<Message> messages = {
      hello,          Welcome{},   Refuse{{Errc::overloaded, "full"}},
      Goodbye{"bye"}, request,     PartRefused{},
      confirm,        Confirmed{}, Release{}};
  for (const Message& message : messages) {
    const auto good = encode(message);
    const auto back = decode(good);
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(back->index(), message.index());
    EXPECT_EQ(encode(*back), good);
    for (size_t size = 0; size < good.size(); ++size)
      EXPECT_FALSE(decode(std::span(good).first(size)).has_value())
          << message.index() << ", " << size;
    for (int round = 0; round < 20'000; ++round) {
      auto bytes = good;
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      if (random() % 3 == 0) bytes.resize(random() % (bytes.size() + 40));
      if (const auto parsed = decode(bytes)) {
        EXPECT_LT(parsed->index(), std::variant_size_v<Message>);
      }
    }
  }
}

}  // namespace
}  // namespace cedar::transport
