#include "core/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace cedar {
namespace {

uint32_t bitwise(std::span<const std::byte> bytes) {
  uint32_t crc = ~0u;
  for (const std::byte b : bytes) {
    crc ^= std::to_integer<uint32_t>(b);
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
  }
  return ~crc;
}

TEST(Crc32c, KnownValues) {
  const std::string_view digits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(digits))), 0xE3069283u);
  EXPECT_EQ(crc32c({}), 0u);
  const std::vector<std::byte> zeros(32);
  EXPECT_EQ(crc32c(zeros), 0x8A9136AAu);
}

TEST(Crc32c, EverySizeAroundTheStripesEqualsTheDefinition) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(20'000);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  for (const size_t size : {1, 7, 8, 9, 63, 6143, 6144, 6145, 12'288, 12'299, 19'999}) {
    for (const size_t start : {0, 1, 5}) {
      const auto part = std::span(bytes).subspan(start, std::min(size, bytes.size() - start));
      EXPECT_EQ(crc32c(part), bitwise(part)) << size << " at " << start;
    }
  }
}

TEST(Crc32c, ContinuesFromASeed) {
  std::vector<std::byte> bytes(10'000, std::byte{0x5A});
  const auto all = std::span<const std::byte>(bytes);
  for (const size_t cut : {0, 1, 6144, 9'999}) {
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c(all));
  }
}

}  // namespace
}  // namespace cedar
