#include "core/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace cedar {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return make_error(Errc::invalid_argument, "odd: " + std::to_string(n));
  return n / 2;
}

Result<int> quarter(int n) {
  CEDAR_TRY(const int first, half(n));
  CEDAR_TRY(const int second, half(first));
  return second;
}

Status check_even(int n) {
  CEDAR_TRY([[maybe_unused]] const int ignored, half(n));
  return {};
}

Result<std::string> describe(int n, int* evaluations) {
  CEDAR_CHECK_OK((++*evaluations, check_even(n)));
  return std::string("even");
}

TEST(Result, HoldsAValueOrAnError) {
  const Result<int> good = half(8);
  ASSERT_TRUE(good.has_value());
  EXPECT_TRUE(static_cast<bool>(good));
  EXPECT_EQ(good.value(), 4);
  EXPECT_EQ(*good, 4);
  const Result<int> bad = half(7);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, Errc::invalid_argument);
  EXPECT_EQ(bad.error().context, "odd: 7");
}

TEST(Result, TryReturnsTheFirstErrorUnchanged) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(7).error().context, "odd: 7");
  EXPECT_EQ(quarter(6).error().context, "odd: 3");
}

TEST(Result, TryWorksBetweenDifferentResultTypes) {
  EXPECT_TRUE(check_even(2));
  EXPECT_EQ(check_even(3).error().context, "odd: 3");
}

TEST(Result, CheckOkEvaluatesOnceAndPassesTheErrorOn) {
  int evaluations = 0;
  EXPECT_EQ(describe(2, &evaluations).value(), "even");
  EXPECT_EQ(evaluations, 1);
  EXPECT_EQ(describe(5, &evaluations).error().message(), "invalid_argument: odd: 5");
  EXPECT_EQ(evaluations, 2);
}

TEST(Result, CarriesMoveOnlyValues) {
  const auto make = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(5); };
  const auto pass = [&make]() -> Result<std::unique_ptr<int>> {
    CEDAR_TRY(auto p, make());
    ++*p;
    return p;
  };
  auto result = pass();
  ASSERT_TRUE(result);
  EXPECT_EQ(**result, 6);
  std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 6);
}

TEST(Result, ArrowReachesMembers) {
  Result<std::vector<int>> result = std::vector<int>{1, 2, 3};
  EXPECT_EQ(result->size(), 3U);
  result->push_back(4);
  EXPECT_EQ(std::as_const(result)->back(), 4);
}

TEST(Result, TryCanAssignToAnExistingVariable) {
  const auto run = [](int n) -> Result<int> {
    int x = 0;
    CEDAR_TRY(x, half(n));
    return x + 100;
  };
  EXPECT_EQ(run(4).value(), 102);
  EXPECT_FALSE(run(3));
}

TEST(Status, DefaultIsSuccess) {
  Status ok;
  EXPECT_TRUE(ok.has_value());
  ok.value();
  const Status failed = make_error(Errc::cancelled, "client left");
  EXPECT_FALSE(failed);
  EXPECT_EQ(failed.error().message(), "cancelled: client left");
}

TEST(ResultDeathTest, ReadingTheValueOfAnErrorStopsWithItsText) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(half(7).value(), "invariant broken.*invalid_argument: odd: 7");
  EXPECT_DEATH(check_even(7).value(), "invariant broken.*invalid_argument: odd: 7");
}

TEST(CheckDeathTest, AssertPrintsExpressionPlaceAndDetail) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(CEDAR_ASSERT(1 + 1 == 3, "sum " + std::to_string(2)),
               "result_test.cpp:[0-9]+: invariant broken: 1 \\+ 1 == 3: sum 2");
}

TEST(Check, DetailIsOnlyEvaluatedOnFailure) {
  bool evaluated = false;
  const auto detail = [&evaluated] {
    evaluated = true;
    return std::string();
  };
  CEDAR_ASSERT(true, detail());
  EXPECT_FALSE(evaluated);
}

}  // namespace
}  // namespace cedar
