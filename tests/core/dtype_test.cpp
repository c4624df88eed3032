#include "core/dtype.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

#include "core/tensor_view.h"
#include "core/units.h"

namespace cedar {
namespace {

TEST(DType, SizesOfStoredElements) {
  EXPECT_EQ(dtype_bytes(DType::bf16), 2);
  EXPECT_EQ(dtype_bytes(DType::f32), 4);
  EXPECT_EQ(dtype_bytes(DType::i32), 4);
  EXPECT_EQ(dtype_bytes(DType::i64), 8);
  for (DType one :
       {DType::e4m3, DType::e8m0, DType::e2m1x2, DType::i8, DType::u8, DType::boolean}) {
    EXPECT_EQ(dtype_bytes(one), 1) << to_string(one);
  }
}

TEST(DType, SafetensorsSpellingsRoundTrip) {
  std::set<std::string> seen;
  for (const char* name : {"BF16", "F32", "F8_E4M3", "F8_E8M0", "I8", "U8", "I32", "I64", "BOOL"}) {
    auto type = dtype_from_safetensors(name);
    ASSERT_TRUE(type) << name;
    EXPECT_EQ(to_string(*type), name);
    seen.insert(name);
  }
  EXPECT_EQ(seen.size(), 9U);
}

TEST(DType, UnknownSpellingsAreRefusedByName) {
  // Packed FP4 is I8 in the files: our own name for it must not be accepted from one.
  for (const char* name : {"", "F16", "F64", "bf16", "E2M1x2", "F8_E5M2", "BF16 "}) {
    auto type = dtype_from_safetensors(name);
    ASSERT_FALSE(type) << name;
    EXPECT_EQ(type.error().code, Errc::invalid_checkpoint);
    EXPECT_NE(type.error().context.find("'" + std::string(name) + "'"), std::string::npos);
  }
}

TEST(TensorView, CountsElementsAndBytes) {
  const float data[6] = {0, 1, 2, 3, 4, 5};
  const TensorView view{data, DType::f32, {2, 3}};
  EXPECT_EQ(view.elements(), 6);
  EXPECT_EQ(view.bytes(), 24);
  EXPECT_FALSE(view.empty());
  EXPECT_EQ(view.as<float>()[5], 5.0F);
  EXPECT_EQ((TensorView{data, DType::f32, {}}).elements(), 1) << "a scalar has one element";
  EXPECT_EQ((TensorView{data, DType::f32, {4, 0}}).elements(), 0);
  EXPECT_TRUE(TensorView{}.empty());
}

TEST(TensorView, ShapeText) {
  const std::array<int64_t, 2> shape = {512, 5120};
  EXPECT_EQ(shape_string(shape), "[512, 5120]");
  EXPECT_EQ(shape_string({}), "[]");
}

TEST(TensorViewDeathTest, WrongElementTypeStopsWithTheDtype) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const float data[1] = {0};
  const TensorView view{data, DType::f32, {1}};
  EXPECT_DEATH(view.as<double>(), "invariant broken.*F32");
}

TEST(Units, DivisionAndAlignmentRoundUp) {
  EXPECT_EQ(ceil_div(0, 128), 0);
  EXPECT_EQ(ceil_div(1, 128), 1);
  EXPECT_EQ(ceil_div(128, 128), 1);
  EXPECT_EQ(ceil_div(129, 128), 2);
  EXPECT_EQ(align_up(0, 64), 0);
  EXPECT_EQ(align_up(1, 64), 64);
  EXPECT_EQ(align_up(64, 64), 64);
  EXPECT_EQ(2_KiB, 2048);
  EXPECT_EQ(3_MiB, 3 * 1024 * 1024);
  EXPECT_EQ(5_GiB, int64_t{5} << 30);
}

}  // namespace
}  // namespace cedar
