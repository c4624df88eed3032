#include "core/error.h"

#include <gtest/gtest.h>

#include <set>

namespace cedar {
namespace {

TEST(Errc, ValuesAreStableBecauseTheyCrossTheWire) {
  EXPECT_EQ(static_cast<int>(Errc::ok), 0);
  EXPECT_EQ(static_cast<int>(Errc::invalid_argument), 1);
  EXPECT_EQ(static_cast<int>(Errc::invalid_config), 2);
  EXPECT_EQ(static_cast<int>(Errc::invalid_checkpoint), 3);
  EXPECT_EQ(static_cast<int>(Errc::not_found), 4);
  EXPECT_EQ(static_cast<int>(Errc::io_error), 5);
  EXPECT_EQ(static_cast<int>(Errc::out_of_memory), 6);
  EXPECT_EQ(static_cast<int>(Errc::overloaded), 7);
  EXPECT_EQ(static_cast<int>(Errc::context_too_long), 8);
  EXPECT_EQ(static_cast<int>(Errc::deadline_exceeded), 9);
  EXPECT_EQ(static_cast<int>(Errc::cancelled), 10);
  EXPECT_EQ(static_cast<int>(Errc::unavailable), 11);
  EXPECT_EQ(static_cast<int>(Errc::stale_generation), 12);
  EXPECT_EQ(static_cast<int>(Errc::checksum_mismatch), 13);
  EXPECT_EQ(static_cast<int>(Errc::unsupported), 14);
  EXPECT_EQ(static_cast<int>(Errc::internal), 15);
}

TEST(Errc, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(Errc::internal); ++code) {
    names.insert(to_string(static_cast<Errc>(code)));
  }
  EXPECT_EQ(names.size(), 16U);
  EXPECT_EQ(names.count("unknown"), 0U);
  EXPECT_EQ(to_string(static_cast<Errc>(200)), "unknown")
      << "a newer peer's code must not crash us";
}

TEST(Errc, OnlyConditionsThatCanPassAreRetryable) {
  const std::set<Errc> expected = {Errc::overloaded, Errc::deadline_exceeded, Errc::unavailable,
                                   Errc::stale_generation, Errc::checksum_mismatch};
  for (int value = 0; value <= static_cast<int>(Errc::internal); ++value) {
    const auto code = static_cast<Errc>(value);
    EXPECT_EQ(retryable(code), expected.count(code) == 1) << to_string(code);
  }
}

TEST(Error, MessageJoinsCodeAndContext) {
  EXPECT_EQ((Error{Errc::invalid_argument, "temperature must be in [0, 2], got 7"}).message(),
            "invalid_argument: temperature must be in [0, 2], got 7");
  EXPECT_EQ((Error{Errc::cancelled, ""}).message(), "cancelled");
}

}  // namespace
}  // namespace cedar
