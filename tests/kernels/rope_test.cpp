#include "kernels/rope.h"

#include "tests/reference/attention_reference.h"
#include "tests/support/backends.h"
#include "tests/support/safetensors_lite.h"

namespace cedar::kernels {
namespace {

const YarnScaling kMiniYarn{4, 16, 2, 256};
const YarnScaling kReleaseYarn{16, 32, 1, 65536};

class Rope : public test::EachBackend {
 protected:
  /// Rotates [rows, heads, head_dim] at `positions`.
  std::vector<Bf16> run(const std::vector<Bf16>& x, const std::vector<int64_t>& positions,
                        int64_t head_dim, const std::vector<float>& inv_freq,
                        bool inverse = false) {
    auto data = upload(x);
    auto at = upload(positions);
    auto freq = upload(inv_freq);
    const auto rows = static_cast<int64_t>(positions.size());
    const int64_t row = static_cast<int64_t>(x.size()) / rows;
    test::expect_ok(rope(ctx(), {.x = data.data(),
                                 .row_stride = row,
                                 .head_stride = head_dim,
                                 .positions = at.data(),
                                 .inv_freq = freq.data(),
                                 .rows = rows,
                                 .heads = row / head_dim,
                                 .head_dim = head_dim,
                                 .rotary_dim = static_cast<int64_t>(inv_freq.size()) * 2,
                                 .inverse = inverse}));
    return data.host();
  }
};

TEST_P(Rope, RotatesTheLastColumnsOfEveryHead) {
  struct Shape {
    int64_t heads, head_dim, rotary;
  };
  for (const Shape shape :
       {Shape{6, 96, 24}, {2, 32, 24}, {1, 128, 32}, {4, 512, 64}, {3, 64, 64}}) {
    const auto inv_freq = rope_inverse_frequencies(shape.rotary, 160000, kReleaseYarn);
    const std::vector<int64_t> positions = {0, 1, 127, 65537, (1 << 20) - 1};
    const auto x = test::random_bf16(5 * shape.heads * shape.head_dim, 3);
    for (const bool inverse : {false, true}) {
      const auto y = run(x, positions, shape.head_dim, inv_freq, inverse);
      const auto width = static_cast<size_t>(shape.head_dim);
      for (size_t h = 0; h < y.size() / width; ++h) {
        const auto want = test::rotate_reference(
            test::widened(std::span(x).subspan(h * width, width)),
            positions[h / static_cast<size_t>(shape.heads)], inv_freq, inverse);
        for (size_t c = 0; c < width; ++c) {
          const Bf16 got = y[h * width + c];
          if (c < width - static_cast<size_t>(shape.rotary)) {
            ASSERT_EQ(got, x[h * width + c]);
          }
          // Where a c - b s cancels, fp32 and double may round far apart in steps but not in size.
          ASSERT_NEAR(test::as_double(got), want[c], 0.0045 * std::abs(want[c]) + 1e-6)
              << h << " " << c;
        }
      }
    }
  }
}

TEST_P(Rope, EqualsTheReferenceProgram) {
  const auto units = test::SafetensorsLite::open(std::string(CEDAR_SOURCE_DIR) +
                                                 "/tests/golden/units.safetensors");
  const auto as_bf16 = [&](const char* name) {
    const auto view = units.at(name).as<Bf16>();
    return std::vector<Bf16>(view.begin(), view.end());
  };
  // The recorded angles belong to positions that the file does not name: rotate by tables made of
  // them.
  const auto cos = units.at("rope_apply.cos").as<float>();
  const auto sin = units.at("rope_apply.sin").as<float>();
  const auto x = as_bf16("rope_apply.x"), y = as_bf16("rope_apply.y"),
             back = as_bf16("rope_apply.back");
  std::vector<Bf16> got, again;
  for (size_t t = 0; t < 5; ++t) {
    std::vector<float> angle(32);
    for (size_t i = 0; i < 32; ++i) angle[i] = std::atan2(sin[t * 32 + i], cos[t * 32 + i]);
    const auto begin = x.begin() + static_cast<int64_t>(t) * 192;
    const auto forth = run({begin, begin + 192}, {1}, 64, angle);
    const auto reverse = run(forth, {1}, 64, angle, true);
    got.insert(got.end(), forth.begin(), forth.end());
    again.insert(again.end(), reverse.begin(), reverse.end());
  }
  EXPECT_LT(test::relative_l2(std::span<const Bf16>(got), std::span<const Bf16>(y)), 1e-5);
  EXPECT_LT(test::relative_l2(std::span<const Bf16>(again), std::span<const Bf16>(back)), 1e-5);
}

CEDAR_EACH_BACKEND(Rope);

/// cos and sin of the reference program's tables, from our frequencies and the fp32 angle.
void expect_table(const char* name, const std::vector<float>& inv_freq) {
  const auto units = test::SafetensorsLite::open(std::string(CEDAR_SOURCE_DIR) +
                                                 "/tests/golden/units.safetensors");
  const std::string prefix = name;
  const auto positions = units.at(prefix + ".positions").as<int32_t>();
  std::vector<double> cos, sin, want_cos, want_sin;
  for (size_t t = 0; t < positions.size(); ++t) {
    if (positions[t] > 4095) continue;  // far positions are only good to 1e-2 by construction
    for (size_t i = 0; i < inv_freq.size(); ++i) {
      const float angle = static_cast<float>(positions[t]) * inv_freq[i];
      cos.push_back(std::cos(static_cast<double>(angle)));
      sin.push_back(std::sin(static_cast<double>(angle)));
      want_cos.push_back(
          static_cast<double>(units.at(prefix + ".cos").as<float>()[t * inv_freq.size() + i]));
      want_sin.push_back(
          static_cast<double>(units.at(prefix + ".sin").as<float>()[t * inv_freq.size() + i]));
    }
  }
  ASSERT_FALSE(cos.empty());
  EXPECT_LT(test::relative_l2(std::span<const double>(cos), std::span<const double>(want_cos)),
            1e-5)
      << name;
  EXPECT_LT(test::relative_l2(std::span<const double>(sin), std::span<const double>(want_sin)),
            1e-5)
      << name;
}

TEST(RopeFrequencies, EqualTheReferenceProgram) {
  expect_table("rope_mini_window", rope_inverse_frequencies(24, 5000, {}));
  expect_table("rope_mini_compressed", rope_inverse_frequencies(24, 40000, kMiniYarn));
  expect_table("rope_release_window", rope_inverse_frequencies(64, 10000, {}));
  expect_table("rope_release_compressed", rope_inverse_frequencies(64, 160000, kReleaseYarn));
}

TEST(RopeFrequencies, EqualTheListOfTheSpecification) {
  const std::vector<float> want = {1,
                                   .687656045f,
                                   .472870797f,
                                   .325172454f,
                                   .223606795f,
                                   .153764561f,
                                   .10573712f,
                                   .0727107748f,
                                   .0500000007f,
                                   .0343828015f,
                                   .0236435402f,
                                   .0162586235f,
                                   .0111803403f,
                                   .00768822804f,
                                   .00528685655f,
                                   .00363553851f,
                                   .00226562493f,
                                   .00139680132f,
                                   8.49689706e-4f,
                                   5.08081983e-4f,
                                   2.96977785e-4f,
                                   1.68179977e-4f,
                                   9.08678412e-5f,
                                   4.54442306e-5f,
                                   1.95312532e-5f,
                                   5.37231244e-6f,
                                   3.69430336e-6f,
                                   2.5404097e-6f,
                                   1.74692821e-6f,
                                   1.20128561e-6f,
                                   8.260713e-7f,
                                   5.6805294e-7f};
  const auto got = rope_inverse_frequencies(64, 160000, kReleaseYarn);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-7f * want[i]) << i;
}

}  // namespace
}  // namespace cedar::kernels
