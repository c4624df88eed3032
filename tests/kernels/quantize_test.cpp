#include "kernels/quantize.h"

#include <cmath>

#include "tests/reference/quantize_reference.h"
#include "tests/support/backends.h"
#include "tests/support/safetensors_lite.h"

namespace cedar::kernels {
namespace {

using test::CpuContext;

struct Q8 {
  std::vector<uint8_t> codes, scales;
};

Q8 run_q8(KernelContext& ctx, std::span<const Bf16> x, int64_t columns) {
  const auto count = static_cast<int64_t>(x.size());
  const test::DeviceArray<Bf16> input(ctx.device, x);
  test::DeviceArray<uint8_t> codes(ctx.device, count, 0xee), scales(ctx.device, count / 32, 0xee);
  QuantizeQ8Params p;
  p.x = input.data();
  p.x_stride = columns;
  p.out = {codes.data(), scales.data()};
  p.rows = count / columns;
  p.columns = columns;
  test::expect_ok(quantize_q8(ctx, p));
  return {codes.host(), scales.host()};
}

/// Groups of 32 that meet every bf16 magnitude below 2^120 and every rounding decision: group g holds a largest
/// value and 31 values from a walk over all bf16 numbers below it.
std::vector<Bf16> all_magnitudes() {
  std::vector<Bf16> x;
  for (uint32_t top = 0; top < 0x7b80; top += 41) {
    x.push_back(Bf16::from_bits(static_cast<uint16_t>(top)));
    for (uint32_t i = 1; i < 32; ++i) {
      const uint32_t below = (top * 7 + i * 1237) % (std::min(top, 0x900u) + 1);
      const uint32_t sign = i % 3 == 0 ? 0x8000 : 0;
      x.push_back(Bf16::from_bits(static_cast<uint16_t>((top - below) | sign)));
    }
  }
  return x;
}

class QuantizeOn : public test::EachBackend {};
CEDAR_EACH_BACKEND(QuantizeOn);

TEST_P(QuantizeOn, Q8EqualsGolden) {
  const auto golden =
      test::SafetensorsLite::open(CEDAR_SOURCE_DIR "/tests/golden/units.safetensors");
  const auto& x = golden.at("act_quant.x");
  const Q8 got = run_q8(ctx(), x.as<Bf16>(), x.shape[1]);
  const auto codes = golden.at("act_quant.q").as<uint8_t>();
  const auto scales = golden.at("act_quant.scale").as<uint8_t>();
  EXPECT_TRUE(std::equal(codes.begin(), codes.end(), got.codes.begin(), got.codes.end()));
  EXPECT_TRUE(std::equal(scales.begin(), scales.end(), got.scales.begin(), got.scales.end()));
}

TEST_P(QuantizeOn, Q8EqualsTheReferenceOnEveryMagnitude) {
  const auto x = all_magnitudes();
  const Q8 got = run_q8(ctx(), x, 32);
  std::vector<float> wide;
  for (const Bf16 value : x) wide.push_back(static_cast<float>(value));
  const auto want = reference::quantize(reference::Rule::q8, wide);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got.codes[i], want.codes[i]) << wide[i];
  for (size_t g = 0; g < want.scales.size(); ++g)
    ASSERT_EQ(got.scales[g], want.scales[g]) << wide[g * 32];
}

TEST_P(QuantizeOn, Q8EqualsTheRowFunction) {
  constexpr int64_t kColumns = 160, kRows = 70;
  const auto x = test::random_bf16(kRows * kColumns, 3, 40.0f);
  const Q8 got = run_q8(ctx(), x, kColumns);
  std::vector<uint8_t> packed(static_cast<size_t>(packed_row_bytes(RowFormat::q8, kColumns)));
  for (int64_t row = 0; row < kRows; ++row) {
    quantize_row(RowFormat::q8, x.data() + row * kColumns, kColumns, packed.data());
    EXPECT_TRUE(
        std::equal(packed.begin(), packed.begin() + kColumns, got.codes.begin() + row * kColumns));
    EXPECT_TRUE(std::equal(packed.begin() + kColumns, packed.end(),
                           got.scales.begin() + row * kColumns / 32));
  }
}

TEST_P(QuantizeOn, Q8OfZerosInfinityAndNan) {
  std::vector<Bf16> x(128, Bf16(0.0f));
  x[1] = Bf16(-0.0f);
  x[32] = Bf16(HUGE_VALF);
  x[64] = Bf16(std::nanf(""));
  x[65] = Bf16(3e38f);
  const Q8 got = run_q8(ctx(), x, 128);
  EXPECT_EQ(got.scales[0], 127 - 22);
  EXPECT_EQ(got.codes[0], 0);
  EXPECT_EQ(got.codes[1], 0x80);
  // What is not finite must not come out as a number.
  EXPECT_EQ(got.scales[1], 255);
  EXPECT_EQ(got.scales[2], 255);
  EXPECT_EQ(got.codes[32] & 0x7f, 0x7f);
  EXPECT_EQ(got.codes[64] & 0x7f, 0x7f);
  EXPECT_EQ(got.scales[3], 127 - 22);
}

TEST_P(QuantizeOn, StridedRows) {
  // Rows that start on 16 bytes, and others.
  for (const int64_t stride : {96, 99}) {
    const auto x = test::random_bf16(4 * stride, 2);
    const auto input = upload(x);
    auto codes = reserve<uint8_t>(4 * 64), scales = reserve<uint8_t>(4 * 2);
    QuantizeQ8Params p;
    p.x = input.data();
    p.x_stride = stride;
    p.out = {codes.data(), scales.data()};
    p.rows = 4;
    p.columns = 64;
    test::expect_ok(quantize_q8(ctx(), p));
    const auto got = codes.host();
    for (size_t row = 0; row < 4; ++row) {
      const Q8 want =
          run_q8(ctx(), std::span(x).subspan(row * static_cast<size_t>(stride), 64), 64);
      EXPECT_TRUE(std::equal(want.codes.begin(), want.codes.end(),
                             got.begin() + static_cast<long>(row) * 64));
    }
  }
}

struct RowCase {
  RowFormat format;
  reference::Rule rule;
  const char* golden;  // codes, scales and values of act_quant.x
};
const RowCase kRowCases[] = {{RowFormat::q8, reference::Rule::q8, "act_quant"},
                             {RowFormat::q4x, reference::Rule::q4x, "fp4_e8m0"},
                             {RowFormat::q4n, reference::Rule::q4n, "fp4_e4m3"}};

TEST(QuantizeRow, EqualsGolden) {
  const auto golden =
      test::SafetensorsLite::open(CEDAR_SOURCE_DIR "/tests/golden/units.safetensors");
  const auto& x = golden.at("act_quant.x");
  const int64_t columns = x.shape[1];
  for (const RowCase& c : kRowCases) {
    SCOPED_TRACE(c.golden);
    const auto codes = golden.at(std::string(c.golden) + ".q").as<uint8_t>();
    const auto scales = golden.at(std::string(c.golden) + ".scale").as<uint8_t>();
    const auto values = golden.at(std::string(c.golden) + ".inplace").as<Bf16>();
    const size_t code_bytes = codes.size() / static_cast<size_t>(x.shape[0]);
    const size_t scale_bytes = scales.size() / static_cast<size_t>(x.shape[0]);
    std::vector<uint8_t> packed(static_cast<size_t>(packed_row_bytes(c.format, columns)));
    std::vector<Bf16> back(static_cast<size_t>(columns));
    ASSERT_EQ(packed.size(), code_bytes + scale_bytes);
    for (size_t row = 0; row < static_cast<size_t>(x.shape[0]); ++row) {
      quantize_row(c.format, x.as<Bf16>().data() + row * back.size(), columns, packed.data());
      EXPECT_TRUE(std::equal(packed.begin(), packed.begin() + static_cast<long>(code_bytes),
                             codes.begin() + static_cast<long>(row * code_bytes)));
      EXPECT_TRUE(std::equal(packed.begin() + static_cast<long>(code_bytes), packed.end(),
                             scales.begin() + static_cast<long>(row * scale_bytes)));
      dequantize_row(c.format, packed.data(), columns, back.data());
      EXPECT_TRUE(std::equal(back.begin(), back.end(),
                             values.begin() + static_cast<long>(row * back.size())));
    }
  }
}

TEST(QuantizeRow, EqualsTheReferenceOnEveryMagnitude) {
  const auto x = all_magnitudes();
  std::vector<float> wide;
  for (const Bf16 value : x) wide.push_back(static_cast<float>(value));
  const auto columns = static_cast<int64_t>(x.size());
  for (const RowCase& c : kRowCases) {
    SCOPED_TRACE(c.golden);
    const auto want = reference::quantize(c.rule, wide);
    std::vector<uint8_t> packed(static_cast<size_t>(packed_row_bytes(c.format, columns)));
    quantize_row(c.format, x.data(), columns, packed.data());
    const size_t code_bytes = c.format == RowFormat::q8 ? x.size() : x.size() / 2;
    for (size_t i = 0; i < x.size(); ++i) {
      const int code =
          c.format == RowFormat::q8 ? packed[i] : (packed[i / 2] >> (4 * (i % 2))) & 15;
      ASSERT_EQ(code, want.codes[i]) << wide[i];
    }
    for (size_t g = 0; g < want.scales.size(); ++g)
      ASSERT_EQ(packed[code_bytes + g], want.scales[g]);
    std::vector<Bf16> back(x.size());
    dequantize_row(c.format, packed.data(), columns, back.data());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(test::as_double(back[i]), want.values[i]) << wide[i];  // exact: no rounding to bf16
    }
  }
}

TEST(QuantizeRow, RequantisingKeepsTheValues) {
  // Not always the codes: where the largest element rounds down to a power of two, the next scale is half.
  const auto x = test::random_bf16(512, 1, 3.0f);
  for (const RowCase& c : kRowCases) {
    std::vector<uint8_t> packed(static_cast<size_t>(packed_row_bytes(c.format, 512)));
    std::vector<Bf16> once(512), twice(512);
    quantize_row(c.format, x.data(), 512, packed.data());
    dequantize_row(c.format, packed.data(), 512, once.data());
    quantize_row(c.format, once.data(), 512, packed.data());
    dequantize_row(c.format, packed.data(), 512, twice.data());
    EXPECT_EQ(once, twice) << c.golden;
  }
}

TEST(QuantizeQ8, RefusesBadParameters) {
  CpuContext ctx;
  std::vector<Bf16> x(64);
  QuantizeQ8Params p;
  p.x = x.data();
  p.x_stride = 64;
  p.rows = 1;
  p.columns = 48;
  Status status = quantize_q8(*ctx, p);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().message(),
            "invalid_argument: quantize_q8: columns must be a positive multiple of 32, got 48");
  p.columns = 64;
  status = quantize_q8(*ctx, p);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().message(), "invalid_argument: quantize_q8: out.codes is null");
}

}  // namespace
}  // namespace cedar::kernels
