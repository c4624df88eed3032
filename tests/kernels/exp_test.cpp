#include "kernels/cpu/exp.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/row_context.h"
#include "tests/support/backends.h"

namespace cedar::kernels {
namespace {

class Exp : public test::EachBackend {
 protected:
  std::vector<float> run(const std::vector<float>& x) {
    std::vector<float> y(x.size());
    cpu::row_kernels(ctx()).exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
    return y;
  }
};

TEST_P(Exp, IsWithinOneUlpOfTheTrueValue) {
  std::vector<float> x;
  for (float v = -87.33f; v < 88.7f; v += 0.000973f) x.push_back(v);
  for (float v = 1e-7f; v < 0.4f; v *= 1.01f) {
    x.push_back(v);
    x.push_back(-v);
  }
  const std::vector<float> y = run(x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    const double ulp = std::ldexp(1.0, std::ilogb(want) - 23);
    worst = std::max(worst, std::abs(static_cast<double>(y[i]) - want) / ulp);
    // Scalar callers get the very same number.
    ASSERT_EQ(float_bits(cpu::exp_scalar(x[i])), float_bits(y[i])) << x[i];
  }
  EXPECT_LT(worst, 1.0);
}

TEST_P(Exp, HandlesTheEnds) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> y =
      run({0.0f, -0.0f, -infinity, -1e30f, -87.4f, 88.8f, 1e30f, infinity});
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[1], 1.0f);
  for (int i = 2; i < 5; ++i) EXPECT_EQ(y[static_cast<size_t>(i)], 0.0f) << i;
  for (int i = 5; i < 8; ++i) EXPECT_EQ(y[static_cast<size_t>(i)], infinity) << i;
}

CEDAR_EACH_BACKEND(Exp);

}  // namespace
}  // namespace cedar::kernels
