#include "kernels/hyper_connection.h"

#include "tests/reference/attention_reference.h"
#include "tests/support/backends.h"
#include "tests/support/safetensors_lite.h"

namespace cedar::kernels {
namespace {

/// Random weights and state of one sublayer.
struct Sublayer {
  int64_t rows, copies, d;
  int64_t outputs = copies * (2 + copies);
  std::vector<Bf16> x = test::random_bf16(rows * copies * d, 61, 2.0f);
  std::vector<Bf16> y = test::random_bf16(rows * d, 62);
  std::vector<float> pre_in = test::random_f32(rows * copies, 63);
  std::vector<float> fn = test::random_f32(outputs * copies * d, 64, 0.02f);
  std::vector<float> base = test::random_f32(outputs, 65);
  std::vector<float> scale = {0.5f, 0.25f, 1.5f};
  std::vector<Bf16> norm = test::random_bf16(d, 66);

  test::Row copy(int64_t row, int64_t j) const {
    return test::widened(
        std::span(x).subspan(static_cast<size_t>((row * copies + j) * d), static_cast<size_t>(d)));
  }
  test::Row mixed(int64_t row, const double* weights) const {
    test::Row sum(static_cast<size_t>(d), 0.0);
    for (int64_t j = 0; j < copies; ++j) {
      const test::Row z = copy(row, j);
      for (size_t c = 0; c < z.size(); ++c) sum[c] += weights[j] * z[c];
    }
    return sum;
  }
};

test::Row widened(const std::vector<float>& x) { return {x.begin(), x.end()}; }

class HyperConnection : public test::EachBackend {
 protected:
  struct Start {
    std::vector<Bf16> u;
    std::vector<float> pre, post, mix;
  };
  Start start(const Sublayer& s) { return start(ctx(), s); }
  Start start(KernelContext& context, const Sublayer& s) {
    auto x = upload(s.x), norm = upload(s.norm);
    auto pre_in = upload(s.pre_in), fn = upload(s.fn), base = upload(s.base),
         scale = upload(s.scale);
    auto u = reserve<Bf16>(s.rows * s.d);
    auto pre = reserve<float>(s.rows * s.copies), post = reserve<float>(s.rows * s.copies);
    auto mix = reserve<float>(s.rows * s.copies * s.copies);
    HcPreParams p;
    p.x = x.data();
    p.pre_in = pre_in.data();
    p.weights = {fn.data(), base.data(), scale.data()};
    p.norm_weight = norm.data();
    p.norm_eps = 1e-20f;
    p.hc_eps = 1e-6f;
    p.u = u.data();
    p.pre = pre.data();
    p.post = post.data();
    p.mix = mix.data();
    p.rows = s.rows;
    p.copies = s.copies;
    p.d = s.d;
    test::expect_ok(hc_pre(context, p));
    return {u.host(), pre.host(), post.host(), mix.host()};
  }
};

TEST_P(HyperConnection, PreFollowsTheFormula) {
  for (const auto& [rows, copies, d] : {std::tuple<int64_t, int64_t, int64_t>{3, 4, 160},
                                        {18, 4, 40},
                                        {2, 2, 25},
                                        {1, 4, 5120},
                                        {5, 8, 64}}) {
    const Sublayer s{rows, copies, d};
    const Start got = start(s);
    std::vector<double> u, pre, post, mix;
    for (int64_t r = 0; r < rows; ++r) {
      test::Row z;
      for (int64_t j = 0; j < copies; ++j) {
        const test::Row part = s.copy(r, j);
        z.insert(z.end(), part.begin(), part.end());
      }
      const double rho = 1 / std::sqrt(test::dot(z, z) / static_cast<double>(z.size()) + 1e-20);
      test::Row m;
      for (int64_t o = 0; o < s.outputs; ++o) {
        const auto begin = s.fn.begin() + o * copies * d;
        m.push_back(test::dot({begin, begin + copies * d}, z) * rho);
      }
      const auto split = test::hc_split_reference(m, widened(s.base), widened(s.scale),
                                                  static_cast<size_t>(copies), 1e-6, 20);
      pre.insert(pre.end(), split.pre.begin(), split.pre.end());
      post.insert(post.end(), split.post.begin(), split.post.end());
      mix.insert(mix.end(), split.mix.begin(), split.mix.end());
      const test::Row weights(s.pre_in.begin() + r * copies, s.pre_in.begin() + (r + 1) * copies);
      test::Row collapsed = s.mixed(r, weights.data());
      for (double& v : collapsed) v = test::round_bf16(v);
      const test::Row normed = test::rms_norm_reference(collapsed, test::widened(s.norm), 1e-20);
      u.insert(u.end(), normed.begin(), normed.end());
    }
    EXPECT_LT(test::worst_error(std::span<const float>(got.pre), std::span<const double>(pre)),
              2e-6)
        << d;
    EXPECT_LT(test::worst_error(std::span<const float>(got.post), std::span<const double>(post)),
              2e-6)
        << d;
    EXPECT_LT(test::worst_error(std::span<const float>(got.mix), std::span<const double>(mix)),
              2e-6)
        << d;
    EXPECT_LT(test::relative_l2(std::span<const Bf16>(got.u), std::span<const double>(u)), 3e-3)
        << d;
  }
}

TEST_P(HyperConnection, ARowIsTheSameAloneAndOnAnyInstructionSet) {
  // 960 columns divide into the shares that blocks of a GPU take, 1000 do not.
  for (const int64_t d : {1000, 960}) {
    const Sublayer all{21, 4, d};
    const Start together = start(all);
    if (!test::on_cuda(GetParam())) {
      test::BackendContext portable(test::all_backends().front(), 1);
      const Start plain = start(*portable, all);
      EXPECT_EQ(together.pre, plain.pre);
      EXPECT_EQ(together.mix, plain.mix);
      EXPECT_EQ(test::bits_of(together.u), test::bits_of(plain.u));
    }
    for (const int64_t r : {0, 15, 16, 20}) {
      Sublayer one{1, 4, d};
      one.x.assign(all.x.begin() + r * 4 * d, all.x.begin() + (r + 1) * 4 * d);
      one.pre_in.assign(all.pre_in.begin() + r * 4, all.pre_in.begin() + (r + 1) * 4);
      one.fn = all.fn;
      const Start alone = start(one);
      ASSERT_TRUE(std::equal(alone.pre.begin(), alone.pre.end(), together.pre.begin() + r * 4))
          << r;
      ASSERT_TRUE(std::equal(alone.mix.begin(), alone.mix.end(), together.mix.begin() + r * 16))
          << r;
      ASSERT_TRUE(std::equal(alone.u.begin(), alone.u.end(), together.u.begin() + r * d)) << r;
    }
  }
}

TEST_P(HyperConnection, PostMixesAndMayWorkInPlace) {
  for (const auto& [rows, copies, d] :
       {std::tuple<int64_t, int64_t, int64_t>{5, 4, 160}, {2, 3, 21}, {1, 8, 5120}}) {
    const Sublayer s{rows, copies, d};
    const auto post = test::random_f32(rows * copies, 67);
    const auto mix = test::random_f32(rows * copies * copies, 68);
    auto x = upload(s.x), y = upload(s.y), out = reserve<Bf16>(rows * copies * d);
    auto d_post = upload(post), d_mix = upload(mix);
    HcPostParams p;
    p.x = x.data();
    p.y = y.data();
    p.post = d_post.data();
    p.mix = d_mix.data();
    p.x_out = out.data();
    p.rows = rows;
    p.copies = copies;
    p.d = d;
    test::expect_ok(hc_post(ctx(), p));
    p.x_out = x.data();
    test::expect_ok(hc_post(ctx(), p));
    EXPECT_EQ(test::bits_of(x.host()), test::bits_of(out.host()));
    std::vector<double> want;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < copies; ++k) {
        test::Row weights;
        for (int64_t j = 0; j < copies; ++j)
          weights.push_back(mix[static_cast<size_t>((r * copies + j) * copies + k)]);
        test::Row sum = s.mixed(r, weights.data());
        for (int64_t c = 0; c < d; ++c) {
          sum[static_cast<size_t>(c)] += post[static_cast<size_t>(r * copies + k)] *
                                         test::as_double(s.y[static_cast<size_t>(r * d + c)]);
        }
        want.insert(want.end(), sum.begin(), sum.end());
      }
    }
    EXPECT_LT(test::relative_l2(std::span<const Bf16>(out.host()), std::span<const double>(want)),
              2.5e-3);
  }
}

TEST_P(HyperConnection, CollapseAndMean) {
  const Sublayer s{6, 4, 100};
  auto x = upload(s.x), norm = upload(s.norm), u = reserve<Bf16>(600), raw = reserve<Bf16>(600);
  auto pre = upload(s.pre_in);
  HcCollapseParams p;
  p.x = x.data();
  p.pre = pre.data();
  p.u = u.data();
  p.rows = 6;
  p.d = 100;
  test::expect_ok(hc_collapse(ctx(), p));
  const auto plain = u.host();
  std::vector<double> want, normed;
  for (int64_t r = 0; r < 6; ++r) {
    const test::Row weights(s.pre_in.begin() + r * 4, s.pre_in.begin() + (r + 1) * 4);
    test::Row sum = s.mixed(r, weights.data());
    want.insert(want.end(), sum.begin(), sum.end());
    for (double& v : sum) v = test::round_bf16(v);
    const auto n = test::rms_norm_reference(sum, test::widened(s.norm), 1e-6);
    normed.insert(normed.end(), n.begin(), n.end());
  }
  EXPECT_LT(test::relative_l2(std::span<const Bf16>(plain), std::span<const double>(want)), 2.5e-3);
  p.norm_weight = norm.data();
  p.norm_eps = 1e-6f;
  p.raw = raw.data();
  test::expect_ok(hc_collapse(ctx(), p));
  EXPECT_EQ(test::bits_of(raw.host()), test::bits_of(plain));
  EXPECT_LT(test::relative_l2(std::span<const Bf16>(u.host()), std::span<const double>(normed)),
            3e-3);

  auto mean = reserve<Bf16>(6 * 130, Bf16(5.0f));
  test::expect_ok(hc_mean(
      ctx(), {.x = x.data(), .y = mean.data(), .y_stride = 130, .rows = 6, .copies = 4, .d = 100}));
  const auto means = mean.host();
  const test::Row quarter(4, 0.25);
  for (int64_t r = 0; r < 6; ++r) {
    const test::Row sum = s.mixed(r, quarter.data());
    for (int64_t c = 0; c < 130; ++c) {
      const Bf16 got = means[static_cast<size_t>(r * 130 + c)];
      const Bf16 expected =
          c < 100 ? Bf16(static_cast<float>(sum[static_cast<size_t>(c)])) : Bf16(5.0f);
      ASSERT_LE(test::bf16_steps(got, expected), 1) << r << " " << c;
    }
  }
}

TEST_P(HyperConnection, RefusesTooManyCopies) {
  Bf16 x;
  test::expect_invalid(
      hc_mean(ctx(), {.x = &x, .y = &x, .y_stride = 1, .rows = 1, .copies = 9, .d = 1}), "copies",
      "9");
}

CEDAR_EACH_BACKEND(HyperConnection);

TEST(HcSplit, EqualsTheReferenceProgram) {
  const auto units = test::SafetensorsLite::open(std::string(CEDAR_SOURCE_DIR) +
                                                 "/tests/golden/units.safetensors");
  const auto mixes = units.at("sinkhorn.mixes").as<float>();
  std::vector<float> pre(64 * 4), post(64 * 4), mix(64 * 16);
  for (size_t r = 0; r < 64; ++r) {
    // Iterations and eps of the mini model's config.json.
    hc_split(mixes.data() + r * 24, units.at("sinkhorn.base").as<float>().data(),
             units.at("sinkhorn.scale").as<float>().data(), 4, 1e-5f, 12, pre.data() + r * 4,
             post.data() + r * 4, mix.data() + r * 16);
  }
  EXPECT_LT(test::relative_l2(std::span<const float>(pre), units.at("sinkhorn.pre").as<float>()),
            1e-5);
  EXPECT_LT(test::relative_l2(std::span<const float>(post), units.at("sinkhorn.post").as<float>()),
            1e-5);
  EXPECT_LT(test::relative_l2(std::span<const float>(mix), units.at("sinkhorn.comb").as<float>()),
            1e-5);
}

TEST(HcSplit, EqualsTheSpecificationsVector) {
  std::vector<float> m(24), base(24), pre(4), post(4), mix(16);
  for (int i = 0; i < 24; ++i) {
    m[static_cast<size_t>(i)] = static_cast<float>((7 * i) % 11 - 5) / 4;
    base[static_cast<size_t>(i)] = static_cast<float>((3 * i) % 5 - 2) / 8;
  }
  const std::vector<float> scale = {.5f, .25f, 1.5f};
  hc_split(m.data(), base.data(), scale.data(), 4, 1e-6f, 20, pre.data(), post.data(), mix.data());
  const std::vector<float> want_pre = {.294215977f, .592667639f, .407334417f, .705786049f};
  const std::vector<float> want_post = {1.03123987f, .784673691f, 1.18533325f, .937581241f};
  const std::vector<float> want_mix = {.178690612f, .506091595f,  .182538778f,  .132678017f,
                                       .267629176f, .0228897352f, .510766268f,  .198713884f,
                                       .15424493f,  .436855167f,  .294371754f,  .114527158f,
                                       .399434298f, .0341625139f, .0123222247f, .554080009f};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(pre[i], want_pre[i], 1e-6f);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(post[i], want_post[i], 1e-6f);
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(mix[i], want_mix[i], 1e-6f);
}

}  // namespace
}  // namespace cedar::kernels
