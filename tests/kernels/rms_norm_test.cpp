#include "kernels/rms_norm.h"

#include "tests/reference/attention_reference.h"
#include "tests/support/backends.h"

namespace cedar::kernels {
namespace {

class RmsNorm : public test::EachBackend {
 protected:
  std::vector<Bf16> run(const std::vector<Bf16>& x, const std::vector<Bf16>& weight, int64_t rows,
                        int64_t columns, float eps, int64_t padding = 0) {
    auto source = upload(x);
    auto w = upload(weight);
    auto y = reserve<Bf16>(rows * (columns + padding), Bf16(7.0f));
    test::expect_ok(rms_norm(ctx(), {.x = source.data(),
                                     .x_stride = static_cast<int64_t>(x.size()) / rows,
                                     .weight = w.data(),
                                     .y = y.data(),
                                     .y_stride = columns + padding,
                                     .rows = rows,
                                     .columns = columns,
                                     .eps = eps}));
    return y.host();
  }
};

TEST_P(RmsNorm, FollowsTheFormula) {
  // 5 and 100 are no multiples of a vector.
  for (const int64_t columns : {5, 64, 100, 160, 1280, 5120}) {
    const auto x = test::random_bf16(3 * columns, 1, 3.0f);
    const auto weight = test::random_bf16(columns, 2);
    const auto y = run(x, weight, 3, columns, 1e-20f);
    for (int64_t r = 0; r < 3; ++r) {
      const auto want = test::rms_norm_reference(
          test::widened(
              std::span(x).subspan(static_cast<size_t>(r * columns), static_cast<size_t>(columns))),
          test::widened(weight), 1e-20);
      for (int64_t c = 0; c < columns; ++c) {
        const Bf16 rounded(static_cast<float>(want[static_cast<size_t>(c)]));
        // One step where fp32 and double fall on two sides of a rounding boundary.
        ASSERT_LE(test::bf16_steps(y[static_cast<size_t>(r * columns + c)], rounded), 1)
            << columns << " " << c;
      }
    }
  }
}

TEST_P(RmsNorm, GivesZerosForAZeroRow) {
  for (const Bf16 y : run(std::vector<Bf16>(64), test::random_bf16(64, 1), 1, 64, 1e-20f)) {
    EXPECT_EQ(static_cast<float>(y), 0.0f);
  }
}

TEST_P(RmsNorm, LeavesGapsBetweenRowsAlone) {
  const auto y = run(test::random_bf16(2 * 48, 1), test::random_bf16(40, 2), 2, 40, 1e-6f, 3);
  for (size_t i : {40u, 41u, 42u, 83u, 84u, 85u}) EXPECT_EQ(y[i], Bf16(7.0f)) << i;
}

TEST_P(RmsNorm, AllowsTheSameArrayAndDependsOnTheRowAlone) {
  const int64_t columns = 1280;
  const auto x = test::random_bf16(37 * columns, 5);
  const auto weight = test::random_bf16(columns, 6);
  auto together = upload(x);
  auto w = upload(weight);
  RmsNormParams p;
  p.x = together.data();
  p.x_stride = p.y_stride = p.columns = columns;
  p.weight = w.data();
  p.y = together.data();
  p.rows = 37;
  test::expect_ok(rms_norm(ctx(), p));
  const auto in_place = together.host();
  for (int64_t r = 0; r < 37; ++r) {
    const auto begin = x.begin() + r * columns;
    const auto alone = run({begin, begin + columns}, weight, 1, columns, 0);
    ASSERT_TRUE(std::equal(alone.begin(), alone.end(), in_place.begin() + r * columns)) << r;
  }
}

TEST_P(RmsNorm, RefusesWrongShapes) {
  Bf16 value;
  RmsNormParams p{.x = &value,
                  .x_stride = 3,
                  .weight = &value,
                  .y = &value,
                  .y_stride = 4,
                  .rows = 1,
                  .columns = 4};
  test::expect_invalid(rms_norm(ctx(), p), "x_stride", "3");
  p.x_stride = 4;
  p.rows = -2;
  test::expect_invalid(rms_norm(ctx(), p), "rows", "-2");
  p.rows = 1;
  p.weight = nullptr;
  test::expect_invalid(rms_norm(ctx(), p), "weight", "null");
  p.rows = 0;
  test::expect_ok(rms_norm(ctx(), p));
}

CEDAR_EACH_BACKEND(RmsNorm);

TEST(Dispatch, NamesADeviceWithoutBackEnd) {
  Bf16 value;
  test::BackendContext cpu(test::all_backends().front());
  KernelContext ctx = *cpu;
  ctx.device = {DeviceKind::cuda, 1};
  const Status status = rms_norm(ctx, {.x = &value,
                                       .x_stride = 1,
                                       .weight = &value,
                                       .y = &value,
                                       .y_stride = 1,
                                       .rows = 1,
                                       .columns = 1});
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, Errc::unsupported);
  EXPECT_NE(status.error().context.find("cuda:1"), std::string::npos) << status.error().context;
}

}  // namespace
}  // namespace cedar::kernels
