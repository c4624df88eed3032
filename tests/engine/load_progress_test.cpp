// What load_model() tells while it loads.

#include <gtest/gtest.h>

#include "tests/support/test_model.h"

namespace cedar::engine {
namespace {

class LoadProgressOf : public ::testing::TestWithParam<model::Role> {
 protected:
  static Result<std::shared_ptr<const LoadedModel>> load(const LoadProgress& progress) {
    Runtime runtime(testing::test_options());
    return load_model(testing::mini_path(), GetParam(), runtime.context(), progress);
  }
};

TEST_P(LoadProgressOf, GrowsToItsTotal) {
  int calls = 0;
  int64_t last = 0, all = 0;
  const auto loaded = load([&](int64_t done, int64_t total) {
    EXPECT_GT(done, last);
    EXPECT_LE(done, total);
    if (calls > 0) {
      EXPECT_EQ(total, all);
    }
    last = done;
    all = total;
    ++calls;
    return true;
  });
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
  EXPECT_GT(calls, 20);
  EXPECT_EQ(last, all);
}

TEST_P(LoadProgressOf, MayStopTheLoad) {
  int calls = 0;
  const auto loaded = load([&](int64_t, int64_t) { return ++calls < 5; });
  ASSERT_FALSE(loaded.has_value());
  EXPECT_EQ(loaded.error().code, Errc::cancelled);
  EXPECT_EQ(calls, 5);
}

INSTANTIATE_TEST_SUITE_P(Roles, LoadProgressOf,
                         ::testing::Values(model::Role::all, model::Role::encoder,
                                           model::Role::decoder),
                         [](const auto& role) { return std::string(to_string(role.param)); });

}  // namespace
}  // namespace cedar::engine
