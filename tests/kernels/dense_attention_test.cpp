#include "kernels/dense_attention.h"

#include "tests/reference/attention_reference.h"
#include "tests/support/backends.h"

namespace cedar::kernels {
namespace {

class DenseAttention : public test::EachBackend {
 protected:
  std::vector<Bf16> run(const std::vector<Bf16>& qkv, int64_t rows, int64_t heads,
                        int64_t head_dim) {
    auto source = upload(qkv);
    auto o = reserve<Bf16>(rows * heads * head_dim);
    test::expect_ok(dense_attention(ctx(), {.qkv = source.data(),
                                            .scale = 0.125f,
                                            .o = o.data(),
                                            .rows = rows,
                                            .heads = heads,
                                            .head_dim = head_dim}));
    return o.host();
  }
};

TEST_P(DenseAttention, FollowsTheFormula) {
  for (const auto& [rows, heads, head_dim] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 2, 32}, {63, 3, 32}, {200, 2, 64}}) {
    const auto qkv = test::random_bf16(rows * 3 * heads * head_dim, 91);
    const auto got = run(qkv, rows, heads, head_dim);
    const auto part = [&, heads = heads, head_dim = head_dim](int64_t row, int64_t which,
                                                              int64_t h) {
      return test::widened(
          std::span(qkv).subspan(static_cast<size_t>(((row * 3 + which) * heads + h) * head_dim),
                                 static_cast<size_t>(head_dim)));
    };
    std::vector<double> want(got.size());
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<test::Row> keys, values;
      for (int64_t r = 0; r < rows; ++r) {
        keys.push_back(part(r, 1, h));
        values.push_back(part(r, 2, h));
      }
      for (int64_t r = 0; r < rows; ++r) {
        const auto o = test::attend_reference(part(r, 0, h), keys, values, 0.125, -1e30);
        std::copy(o.begin(), o.end(), want.begin() + (r * heads + h) * head_dim);
      }
    }
    EXPECT_LT(test::relative_l2(std::span<const Bf16>(got), std::span<const double>(want)), 3.5e-3)
        << rows;
  }
}

TEST_P(DenseAttention, RotatesQAndKByHalves) {
  constexpr int64_t kRows = 3, kHeads = 2, kDim = 40, kHalf = kDim / 2;
  const auto host = test::random_bf16(kRows * 3 * kHeads * kDim, 92);
  std::vector<float> cos, sin;
  for (int i = 0; i < kRows * kHalf; ++i) {
    cos.push_back(std::cos(0.37f * static_cast<float>(i)));
    sin.push_back(std::sin(0.37f * static_cast<float>(i)));
  }
  auto qkv = upload(host);
  auto d_cos = upload(cos), d_sin = upload(sin);
  test::expect_ok(vision_rope(ctx(), {.qkv = qkv.data(),
                                      .cos = d_cos.data(),
                                      .sin = d_sin.data(),
                                      .rows = kRows,
                                      .heads = kHeads,
                                      .head_dim = kDim}));
  const auto got = qkv.host();
  for (int64_t i = 0; i < kRows * 3 * kHeads; ++i) {
    const int64_t row = i / (3 * kHeads);
    for (int64_t k = 0; k < kHalf; ++k) {
      const auto a = static_cast<size_t>(i * kDim + k), b = a + kHalf;
      if (i % (3 * kHeads) >= 2 * kHeads) {
        ASSERT_EQ(got[a], host[a]) << "v is not rotated";
        ASSERT_EQ(got[b], host[b]);
        continue;
      }
      const double c = static_cast<double>(cos[static_cast<size_t>(row * kHalf + k)]);
      const double s = static_cast<double>(sin[static_cast<size_t>(row * kHalf + k)]);
      const double x = test::as_double(host[a]), y = test::as_double(host[b]);
      ASSERT_NEAR(test::as_double(got[a]), x * c - y * s, 0.004 * std::abs(x * c - y * s) + 1e-6);
      ASSERT_NEAR(test::as_double(got[b]), y * c + x * s, 0.004 * std::abs(y * c + x * s) + 1e-6);
    }
  }
}

TEST_P(DenseAttention, BiasActivationResidual) {
  constexpr int64_t kRows = 3, kColumns = 50;
  const auto x = test::random_bf16(kRows * kColumns, 93), bias = test::random_bf16(kColumns, 94);
  const auto residual = test::random_bf16(kRows * kColumns, 95);
  auto d_bias = upload(bias), d_residual = upload(residual);
  for (const bool gelu : {false, true}) {
    for (const bool with_residual : {false, true}) {
      auto data = upload(x);
      BiasParams p;
      p.x = data.data();
      p.bias = d_bias.data();
      p.residual = with_residual ? d_residual.data() : nullptr;
      p.activation = gelu ? Activation::gelu_erf : Activation::none;
      p.rows = kRows;
      p.columns = kColumns;
      test::expect_ok(add_bias(ctx(), p));
      const auto got = data.host();
      for (size_t i = 0; i < got.size(); ++i) {
        double want = test::round_bf16(test::as_double(x[i]) + test::as_double(bias[i % kColumns]));
        if (gelu) want = test::round_bf16(0.5 * want * (1 + std::erf(want / std::sqrt(2.0))));
        if (with_residual) want = test::round_bf16(want + test::as_double(residual[i]));
        ASSERT_EQ(test::as_double(got[i]), want) << i;
      }
    }
  }
}

TEST_P(DenseAttention, ABiasedLinearRoundsOnce) {
  // 1 + 2^-8 lies half way between two bf16: rounding the sum before the bias loses the bias's
  // 2^-9.
  auto sum = upload(std::vector<float>{1.00390625f, 1.00390625f});
  auto bias = upload(std::vector<Bf16>{Bf16(0.001953125f), Bf16(-0.001953125f)});
  auto x = upload(std::vector<Bf16>(2, Bf16(77.0f)));
  BiasParams p;
  p.x = x.data();
  p.sum = sum.data();
  p.bias = bias.data();
  p.rows = 1;
  p.columns = 2;
  test::expect_ok(add_bias(ctx(), p));
  EXPECT_EQ(static_cast<float>(x.host()[0]), 1.0078125f);
  EXPECT_EQ(static_cast<float>(x.host()[1]), 1.0f);
}

TEST_P(DenseAttention, SiluMul) {
  constexpr int64_t kRows = 2, kColumns = 45;
  auto x = test::random_bf16(kRows * 2 * kColumns, 96, 4.0f);
  x[0] = Bf16(-200.0f);
  x[1] = Bf16(200.0f);
  auto source = upload(x);
  auto y = reserve<Bf16>(kRows * kColumns);
  test::expect_ok(
      silu_mul(ctx(), {.x = source.data(), .y = y.data(), .rows = kRows, .columns = kColumns}));
  const auto got = y.host();
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kColumns; ++c) {
      const double g = test::as_double(x[static_cast<size_t>(r * 2 * kColumns + c)]);
      const double up = test::as_double(x[static_cast<size_t>((r * 2 + 1) * kColumns + c)]);
      const Bf16 want(static_cast<float>(test::round_bf16(g / (1 + std::exp(-g))) * up));
      ASSERT_LE(test::bf16_steps(got[static_cast<size_t>(r * kColumns + c)], want), 1) << g;
    }
  }
}

CEDAR_EACH_BACKEND(DenseAttention);

}  // namespace
}  // namespace cedar::kernels
