#include "kernels/linear.h"

#include <cstring>
#include <memory>

#include "tests/reference/linear_reference.h"
#include "tests/support/backends.h"
#include "tests/support/safetensors_lite.h"

namespace cedar::kernels {
namespace {

using test::BackendContext;
using test::CpuContext;
using test::DeviceArray;

/// A random weight in checkpoint layout.
struct TestWeight {
  std::vector<uint8_t> codes, scales;
  WeightView view;

  TestWeight(WeightFormat format, int64_t out, int64_t in, uint32_t seed) {
    view.format = format;
    view.out = out;
    view.in = in;
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal(0.0f, 0.5f);
    switch (format) {
      case WeightFormat::bf16:
        for (const Bf16 x : test::random_bf16(out * in, seed, 0.5f)) append(x);
        break;
      case WeightFormat::f32:
        for (int64_t i = 0; i < out * in; ++i) append(normal(engine));
        break;
      case WeightFormat::fp8_block32:
        // Every code but the NaNs, subnormals included.
        codes = test::random_bytes(out * in, seed);
        for (uint8_t& code : codes) code = (code & 0x7f) == 0x7f ? uint8_t{0x81} : code;
        scales = test::random_bytes((out + 31) / 32 * (in / 32), seed + 1, 112, 122);
        break;
      case WeightFormat::fp4_group32:
        codes = test::random_bytes(out * in / 2, seed);
        scales = test::random_bytes(out * (in / 32), seed + 1, 120, 130);
        break;
    }
    view.data = codes.data();
    view.scales = scales.empty() ? nullptr : scales.data();
  }

 private:
  template <class T>
  void append(T value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    codes.insert(codes.end(), bytes, bytes + sizeof value);
  }
};

/// y [rows, out] in f32, or in bf16 widened. Outputs that are not written come back as NaN.
std::vector<float> run_linear(KernelContext& ctx, const PackedWeight& weight,
                              std::span<const Bf16> x, DType y_dtype = DType::f32) {
  const float nan = std::nanf("");
  const auto rows = static_cast<int64_t>(x.size()) / weight.in;
  const DeviceArray<Bf16> input(ctx.device, x);
  DeviceArray<float> wide(ctx.device, rows * weight.out, nan);
  DeviceArray<Bf16> narrow(ctx.device, rows * weight.out, Bf16(nan));
  LinearParams p;
  p.weight = &weight;
  p.x = input.data();
  p.x_stride = weight.in;
  if (weight.format == WeightFormat::fp8_block32 || weight.format == WeightFormat::fp4_group32) {
    p.xq = *quantize_q8(ctx, input.data(), rows, weight.in);
  }
  p.y = y_dtype == DType::f32 ? static_cast<void*>(wide.data()) : static_cast<void*>(narrow.data());
  p.y_stride = weight.out;
  p.y_dtype = y_dtype;
  p.rows = rows;
  test::expect_ok(linear(ctx, p));
  if (y_dtype == DType::f32) return wide.host();
  std::vector<float> y;
  for (const Bf16 value : narrow.host()) y.push_back(static_cast<float>(value));
  return y;
}

struct Shape {
  WeightFormat format;
  int64_t out, in;
};

// Tile edges (32 outputs, 32 inputs, panels of 256 inputs) from both sides; the formats without groups take any `in`.
const Shape kShapes[] = {
    {WeightFormat::fp8_block32, 1, 32},
    {WeightFormat::fp8_block32, 90, 256},
    {WeightFormat::fp8_block32, 64, 1312},
    {WeightFormat::fp4_group32, 33, 32},
    {WeightFormat::fp4_group32, 90, 288},
    {WeightFormat::fp4_group32, 64, 2304},
    {WeightFormat::bf16, 24, 160},
    {WeightFormat::bf16, 33, 24},
    {WeightFormat::bf16, 7, 1},
    {WeightFormat::bf16, 65, 257},
    {WeightFormat::bf16, 32, 5120},
    {WeightFormat::f32, 24, 640},
    {WeightFormat::f32, 3, 7},
    {WeightFormat::f32, 40, 300},
};

std::string describe(const Shape& s) {
  return "format " + std::to_string(static_cast<int>(s.format)) + " [" + std::to_string(s.out) +
         ", " + std::to_string(s.in) + "]";
}

class LinearOn : public test::EachBackend {
 protected:
  /// fp32 sums of up to 5120 products against double; tensor cores cut the bits below a sum's last place off instead
  /// of rounding.
  double tolerance() const { return on_cuda(GetParam()) ? 2e-5 : 2e-6; }
};
CEDAR_EACH_BACKEND(LinearOn);

TEST_P(LinearOn, EqualsTheReference) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(describe(s));
    const TestWeight weight(s.format, s.out, s.in, 7);
    const auto packed = pack_weight(ctx(), weight.view);
    ASSERT_TRUE(packed.has_value()) << packed.error().message();
    const auto x = test::random_bf16(5 * s.in, 11);
    const auto want = reference::linear(weight.view, x);
    const auto got = run_linear(ctx(), *packed, x);
    EXPECT_LT((test::relative_l2<float, double>(got, want)), tolerance());
    const auto rounded = run_linear(ctx(), *packed, x, DType::bf16);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(rounded[i], round_to_bf16(got[i])) << i;
  }
}

TEST_P(LinearOn, RowDoesNotDependOnTheOthers) {
  for (const Shape& s :
       {Shape{WeightFormat::fp8_block32, 90, 320}, Shape{WeightFormat::fp4_group32, 90, 320},
        Shape{WeightFormat::bf16, 90, 333}, Shape{WeightFormat::f32, 40, 333}}) {
    SCOPED_TRACE(describe(s));
    const TestWeight weight(s.format, s.out, s.in, 3);
    const auto packed = pack_weight(ctx(), weight.view);
    ASSERT_TRUE(packed.has_value());
    const auto all = test::random_bf16(200 * s.in, 5);
    const std::span<const Bf16> x(all);
    const auto in = static_cast<size_t>(s.in), out = static_cast<size_t>(s.out);

    std::vector<float> alone;  // every row as a batch of one
    for (size_t row = 0; row < 200; ++row) {
      const auto y = run_linear(ctx(), *packed, x.subspan(row * in, in));
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (const size_t rows : {1, 2, 3, 5, 8, 17, 64, 200}) {
      const size_t first = 200 - rows;  // other neighbours, other places in the tile
      const auto y = run_linear(ctx(), *packed, x.subspan(first * in, rows * in));
      ASSERT_EQ(std::memcmp(y.data(), alone.data() + first * out, y.size() * sizeof(float)), 0)
          << rows;
    }
  }
}

TEST_P(LinearOn, ThreadsDoNotChangeTheResult) {
  BackendContext one(GetParam(), 1), three(GetParam(), 3);
  const TestWeight weight(WeightFormat::fp4_group32, 333, 640, 3);
  const auto x = test::random_bf16(100 * 640, 9);
  EXPECT_EQ(run_linear(*one, *pack_weight(*one, weight.view), x),
            run_linear(*three, *pack_weight(*three, weight.view), x));
}

TEST_P(LinearOn, GoldenGemms) {
  const auto golden =
      test::SafetensorsLite::open(CEDAR_SOURCE_DIR "/tests/golden/units.safetensors");
  const auto& x = golden.at("gemm.x");
  for (const std::string name : {"fp8_gemm", "fp4_gemm"}) {
    const auto& w = golden.at(name + ".w");
    WeightView view;
    view.format = name == "fp8_gemm" ? WeightFormat::fp8_block32 : WeightFormat::fp4_group32;
    view.out = w.shape[0];
    view.in = x.shape[1];
    view.data = w.data;
    view.scales = golden.at(name + ".w_scale").as<uint8_t>().data();
    const auto packed = pack_weight(ctx(), view);
    ASSERT_TRUE(packed.has_value());
    const auto wide = run_linear(ctx(), *packed, x.as<Bf16>(), DType::bf16);
    std::vector<Bf16> got;
    for (const float value : wide) got.push_back(Bf16(value));
    const auto want = golden.at(name + ".out").as<Bf16>();
    EXPECT_LT((test::relative_l2<Bf16, Bf16>(got, want)), 4e-3) << name;
    EXPECT_LE(test::most_bf16_steps(got, want), 2) << name;
  }
}

TEST_P(LinearOn, ReadsNothingBeyondARowAndWritesNothingBeyondOut) {
  struct Case {
    int64_t in, x_stride;
  };
  // Rows that 16-byte accesses can read, and others.
  for (const Case c : {Case{37, 50}, Case{40, 48}, Case{136, 264}}) {
    SCOPED_TRACE(c.in);
    const auto in = static_cast<size_t>(c.in), stride = static_cast<size_t>(c.x_stride);
    const TestWeight weight(WeightFormat::bf16, 40, c.in, 3);
    const auto packed = pack_weight(ctx(), weight.view);
    ASSERT_TRUE(packed.has_value());
    const auto dense = test::random_bf16(3 * c.in, 1);
    const float nan = std::nanf("");
    std::vector<Bf16> spread(3 * stride, Bf16(nan));  // NaN between the rows would spread if read
    for (size_t row = 0; row < 3; ++row) {
      std::copy_n(dense.data() + row * in, in, spread.data() + row * stride);
    }
    const auto x = upload(spread);
    auto y = reserve<float>(3 * 48, -7.0f);
    LinearParams p;
    p.weight = &*packed;
    p.x = x.data();
    p.x_stride = c.x_stride;
    p.y = y.data();
    p.y_stride = 48;
    p.y_dtype = DType::f32;
    p.rows = 3;
    test::expect_ok(linear(ctx(), p));
    const auto want = run_linear(ctx(), *packed, dense);
    const auto got = y.host();
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i], i % 48 < 40 ? want[i / 48 * 40 + i % 48] : -7.0f) << i;
    }
  }
}

TEST_P(LinearOn, ManyRows) {
  // More rows than the CUDA back end's kernels for few take, and tiles of rows and outputs that are not full.
  for (const Shape& s :
       {Shape{WeightFormat::fp8_block32, 290, 320}, Shape{WeightFormat::fp8_block32, 290, 1056},
        Shape{WeightFormat::fp4_group32, 290, 288}, Shape{WeightFormat::fp4_group32, 290, 1120},
        Shape{WeightFormat::bf16, 150, 328}, Shape{WeightFormat::bf16, 150, 1064},
        Shape{WeightFormat::f32, 40, 64}}) {
    SCOPED_TRACE(describe(s));
    const TestWeight weight(s.format, s.out, s.in, 3);
    const auto packed = pack_weight(ctx(), weight.view);
    ASSERT_TRUE(packed.has_value());
    const auto x = test::random_bf16(301 * s.in, 5);
    const auto want = reference::linear(weight.view, x);
    const auto got = run_linear(ctx(), *packed, x);
    EXPECT_LT((test::relative_l2<float, double>(got, want)), tolerance());
    // The last rows as the last of fewer, down to one: the same bits.
    const size_t in = static_cast<size_t>(s.in), out = static_cast<size_t>(s.out);
    for (const size_t left_out : {40, 243, 292, 300}) {
      const auto fewer = run_linear(ctx(), *packed, std::span(x).subspan(in * left_out));
      EXPECT_EQ(
          std::memcmp(fewer.data(), got.data() + left_out * out, fewer.size() * sizeof(float)), 0)
          << 301 - left_out << " rows";
    }
    const auto narrow = run_linear(ctx(), *packed, x, DType::bf16);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(narrow[i], round_to_bf16(got[i])) << i;
  }
}

TEST_P(LinearOn, MoreBlocksThanADeviceHoldsGiveTheSameEveryTime) {
  // On a GPU, clusters of blocks that come and go: one that ended too early would be written over while it is read.
  for (const WeightFormat format :
       {WeightFormat::fp8_block32, WeightFormat::fp4_group32, WeightFormat::bf16}) {
    SCOPED_TRACE(static_cast<int>(format));
    const TestWeight weight(format, 8512, 512, 3);
    const auto packed = pack_weight(ctx(), weight.view);
    ASSERT_TRUE(packed.has_value());
    // Few rows and many: tiles that clusters share, and blocks that take several.
    for (const int64_t rows : {200, 520}) {
      if (rows > 200 && !on_cuda(GetParam())) continue;
      const auto x = test::random_bf16(rows * 512, 5);
      const auto want = run_linear(ctx(), *packed, x, DType::bf16);
      for (int i = 0; i < (on_cuda(GetParam()) ? 30 : 1); ++i) {
        const auto got = run_linear(ctx(), *packed, x, DType::bf16);
        ASSERT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0) << i;
      }
      if (!on_cuda(GetParam())) continue;
      // Rows alone: what no block that stays, and no neighbour in a cluster, has touched.
      for (const int64_t row : {int64_t{0}, int64_t{131}, rows - 1}) {
        const auto alone =
            run_linear(ctx(), *packed, std::span(x).subspan(row * 512, 512), DType::bf16);
        ASSERT_EQ(std::memcmp(alone.data(), want.data() + row * 8512, 8512 * sizeof(float)), 0)
            << row;
      }
    }
  }
}

TEST_P(LinearOn, GroupsReadInputsOfTheirOwn) {
  constexpr int64_t kGroups = 3, kOut = 128, kIn = 192, kStride = kGroups * kIn + 8;
  std::vector<TestWeight> weights;
  for (uint32_t g = 0; g < kGroups; ++g) weights.emplace_back(WeightFormat::bf16, kOut, kIn, 3 + g);
  std::vector<WeightView> views;
  for (const TestWeight& weight : weights) views.push_back(weight.view);
  const auto joined = pack_weight(ctx(), std::span<const WeightView>(views));
  ASSERT_TRUE(joined.has_value());
  for (const int64_t rows : {1, 20, 300}) {
    const auto spread = test::random_bf16(rows * kStride, 5);
    const auto x = upload(spread);
    auto y = reserve<float>(rows * kGroups * kOut);
    LinearParams p;
    p.weight = &*joined;
    p.x = x.data();
    p.x_stride = kStride;
    p.y = y.data();
    p.y_stride = kGroups * kOut;
    p.y_dtype = DType::f32;
    p.rows = rows;
    p.groups = kGroups;
    const Status status = linear(ctx(), p);
    if (!on_cuda(GetParam())) {
      EXPECT_EQ(status.error().code, Errc::unsupported);
      continue;
    }
    test::expect_ok(status);
    const auto got = y.host();
    for (int64_t g = 0; g < kGroups; ++g) {
      std::vector<Bf16> inputs;
      for (int64_t row = 0; row < rows; ++row) {
        const auto first = spread.begin() + row * kStride + g * kIn;
        inputs.insert(inputs.end(), first, first + kIn);
      }
      const auto want = reference::linear(weights[static_cast<size_t>(g)].view, inputs);
      std::vector<float> part;
      for (int64_t row = 0; row < rows; ++row) {
        const auto first = got.begin() + (row * kGroups + g) * kOut;
        part.insert(part.end(), first, first + kOut);
      }
      EXPECT_LT((test::relative_l2<float, double>(part, want)), tolerance()) << g << " of " << rows;
    }
    p.groups = 2;
    EXPECT_EQ(linear(ctx(), p).error().code, Errc::invalid_argument);
  }
}

TEST_P(LinearOn, CodesWithoutValuesGiveTheSame) {
  // Codes that no quantize_q8() of this back end made.
  const TestWeight weight(WeightFormat::fp8_block32, 96, 160, 3);
  const auto packed = pack_weight(ctx(), weight.view);
  ASSERT_TRUE(packed.has_value());
  const auto x = test::random_bf16(5 * 160, 5);
  const auto input = upload(x);
  auto codes = reserve<uint8_t>(5 * 160), scales = reserve<uint8_t>(5 * 5);
  QuantizeQ8Params q;
  q.x = input.data();
  q.x_stride = q.columns = 160;
  q.rows = 5;
  q.out = {codes.data(), scales.data()};
  test::expect_ok(quantize_q8(ctx(), q));
  auto y = reserve<float>(5 * 96);
  LinearParams p;
  p.weight = &*packed;
  p.xq = q.out;
  p.y = y.data();
  p.y_stride = 96;
  p.y_dtype = DType::f32;
  p.rows = 5;
  test::expect_ok(linear(ctx(), p));
  EXPECT_EQ(y.host(), run_linear(ctx(), *packed, x));
}

TEST_P(LinearOn, ExtremeScalesStayExact) {
  // One product: 1 * 1 * 2^(scale - 127), down to the E8M0 byte 0.
  std::vector<Bf16> x(32, Bf16(0.0f));
  x[5] = Bf16(448.0f);  // Q8 scale 1, code 448
  for (const WeightFormat format : {WeightFormat::fp8_block32, WeightFormat::fp4_group32}) {
    for (const int scale : {0, 1, 127, 240}) {
      TestWeight weight(format, 32, 32, 1);
      std::fill(weight.codes.begin(), weight.codes.end(),
                format == WeightFormat::fp8_block32 ? 0x38 : 0x22);
      std::fill(weight.scales.begin(), weight.scales.end(), static_cast<uint8_t>(scale));
      const auto packed = pack_weight(ctx(), weight.view);
      ASSERT_TRUE(packed.has_value());
      for (const float y : run_linear(ctx(), *packed, x))
        EXPECT_EQ(y, std::ldexp(448.0f, scale - 127)) << scale;
    }
  }
}

TEST(Linear, IsaLevelsAgree) {
  // Only the order inside groups of 32 may differ.
  const TestWeight weight(WeightFormat::fp8_block32, 96, 2304, 3);
  const auto x = test::random_bf16(9 * 2304, 9);
  CpuContext portable(CpuIsa::portable);
  const auto want = run_linear(*portable, *pack_weight(*portable, weight.view), x);
  for (const CpuIsa isa : {CpuIsa::avx2, CpuIsa::avx512_bf16}) {
    if (!cpu_supports(isa)) continue;
    CpuContext ctx(isa);
    const auto got = run_linear(*ctx, *pack_weight(*ctx, weight.view), x);
    EXPECT_LT((test::relative_l2<float, float>(got, want)), 1e-6) << to_string(isa);
  }
}

class PackWeightOn : public test::EachBackend {};
CEDAR_EACH_BACKEND(PackWeightOn);

TEST_P(PackWeightOn, StackedViewsAreConsecutiveColumns) {
  for (const WeightFormat format :
       {WeightFormat::fp8_block32, WeightFormat::fp4_group32, WeightFormat::bf16}) {
    const int64_t first_out = format == WeightFormat::fp8_block32 ? 64 : 37;
    const TestWeight first(format, first_out, 96, 3), second(format, 50, 96, 4);
    const WeightView views[] = {first.view, second.view};
    const auto stacked = pack_weight(ctx(), std::span<const WeightView>(views));
    ASSERT_TRUE(stacked.has_value());
    EXPECT_EQ(stacked->out, first_out + 50);
    const auto x = test::random_bf16(96, 8);
    auto want = run_linear(ctx(), *pack_weight(ctx(), first.view), x);
    const auto rest = run_linear(ctx(), *pack_weight(ctx(), second.view), x);
    want.insert(want.end(), rest.begin(), rest.end());
    EXPECT_EQ(run_linear(ctx(), *stacked, x), want);
  }
}

TEST_P(PackWeightOn, KeepsCodesAtTheirSize) {
  const TestWeight fp8(WeightFormat::fp8_block32, 64, 128, 1),
      fp4(WeightFormat::fp4_group32, 64, 128, 1);
  const int64_t fp8_bytes = 64 * 128 + 2 * 4, fp4_bytes = 64 * 128 / 2 + 64 * 4;
  // A GPU's blocks of 64 x 64 are padded to whole copies of 16 bytes.
  const int64_t padding = on_cuda(GetParam()) ? 2 * 12 : 0;
  EXPECT_EQ(pack_weight(ctx(), fp8.view)->bytes(), fp8_bytes + padding);
  EXPECT_EQ(pack_weight(ctx(), fp4.view)->bytes(), fp4_bytes);
}

TEST_P(PackWeightOn, RefusesNan) {
  TestWeight code(WeightFormat::fp8_block32, 64, 64, 1);
  code.codes[40 * 64 + 3] = 0xff;
  const auto bad_code = pack_weight(ctx(), code.view);
  ASSERT_FALSE(bad_code.has_value());
  EXPECT_EQ(bad_code.error().code, Errc::invalid_argument);
  EXPECT_NE(bad_code.error().context.find("outputs 32 to 63"), std::string::npos);
  TestWeight scale(WeightFormat::fp4_group32, 64, 64, 1);
  scale.scales[5] = 255;
  EXPECT_FALSE(pack_weight(ctx(), scale.view).has_value());
}

TEST(PackWeight, RefusesBadViews) {
  CpuContext ctx;
  const TestWeight good(WeightFormat::fp8_block32, 32, 64, 1);
  const auto message = [&](WeightView view) {
    const auto packed = pack_weight(*ctx, view);
    return packed.has_value() ? std::string("accepted") : packed.error().message();
  };
  WeightView view = good.view;
  view.in = 40;
  EXPECT_EQ(message(view), "invalid_argument: pack_weight: in must be a multiple of 32, got 40");
  view = good.view;
  view.scales = nullptr;
  EXPECT_EQ(message(view), "invalid_argument: pack_weight: scales is null");
  view = good.view;
  view.out = 0;
  EXPECT_EQ(message(view), "invalid_argument: pack_weight: out must be positive, got 0");
  EXPECT_FALSE(pack_weight(*ctx, std::span<const WeightView>()).has_value());

  const TestWeight odd(WeightFormat::fp8_block32, 33, 64, 1);
  const WeightView unaligned[] = {odd.view, good.view};
  EXPECT_FALSE(pack_weight(*ctx, std::span<const WeightView>(unaligned)).has_value());
  const TestWeight other(WeightFormat::fp8_block32, 32, 96, 1);
  const WeightView mixed[] = {good.view, other.view};
  EXPECT_FALSE(pack_weight(*ctx, std::span<const WeightView>(mixed)).has_value());
}

TEST(Linear, RefusesBadParameters) {
  CpuContext ctx;
  const TestWeight weight(WeightFormat::bf16, 32, 64, 1);
  const auto packed = pack_weight(*ctx, weight.view);
  ASSERT_TRUE(packed.has_value());
  std::vector<Bf16> x(64), y(32);
  LinearParams good;
  good.weight = &*packed;
  good.x = x.data();
  good.x_stride = 64;
  good.y = y.data();
  good.y_stride = 32;
  good.rows = 1;
  ASSERT_TRUE(linear(*ctx, good).has_value());
  const auto message = [&](const LinearParams& p) {
    const Status status = linear(*ctx, p);
    return status.has_value() ? std::string("accepted") : status.error().message();
  };
  LinearParams p = good;
  p.x_stride = 63;
  EXPECT_EQ(message(p), "invalid_argument: linear: x_stride must be at least 64, got 63");
  p = good;
  p.y = nullptr;
  EXPECT_EQ(message(p), "invalid_argument: linear: y is null");
  p = good;
  p.y_dtype = DType::i32;
  EXPECT_EQ(message(p), "invalid_argument: linear: y_dtype must be BF16 or F32, got I32");
  p = good;
  p.rows = -1;
  EXPECT_EQ(message(p), "invalid_argument: linear: rows must be at least 0, got -1");
  p = good;
  p.rows = 0;
  p.x = nullptr;
  EXPECT_EQ(message(p), "accepted");
}

TEST(Linear, RefusesADeviceWithoutBackEnd) {
  CpuContext ctx;
  KernelContext cuda = *ctx;
  cuda.device = Device{DeviceKind::cuda, 63};
  const TestWeight weight(WeightFormat::bf16, 32, 64, 1);
  const auto packed = pack_weight(cuda, weight.view);
  ASSERT_FALSE(packed.has_value());
  EXPECT_EQ(packed.error().code, Errc::unsupported);
}

}  // namespace
}  // namespace cedar::kernels
