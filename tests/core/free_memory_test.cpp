#include "core/free_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cedar {
namespace {

TEST(FreeMemory, WhatAMachineDoesNotHaveIsRefusedWithBothFigures) {
  const int64_t available = available_memory();
  ASSERT_GT(available, 0);
  EXPECT_TRUE(check_available(4096).has_value());
  const Status refused = check_available(int64_t{1} << 50);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::out_of_memory);
  EXPECT_THAT(refused.error().context, testing::HasSubstr("1125899906842624 bytes"));
  EXPECT_THAT(refused.error().context, testing::ContainsRegex("has [0-9]+ to give"));
}

}  // namespace
}  // namespace cedar
