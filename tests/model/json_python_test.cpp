#include "model/json_python.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cedar::model {
namespace {

/// Read and written again.
std::string rewrite(const std::string& text) {
  auto value = read_python_json(text);
  if (!value) return "refused: " + value.error().context;
  auto out = write_python_json(*value);
  return out ? *out : "refused: " + out.error().context;
}

// Expected texts are what json.dumps(json.loads(text), ensure_ascii=False) prints.
TEST(PythonJson, WritesAsPythonDoes) {
  EXPECT_EQ(rewrite(R"({"b":1,"a":[1,true,null,false],"c":{}})"),
            R"({"b": 1, "a": [1, true, null, false], "c": {}})");
  EXPECT_EQ(rewrite("[]"), "[]");
  EXPECT_EQ(rewrite("[[],{}]"), "[[], {}]");
  EXPECT_EQ(rewrite(R"("\u4e2d\u6587 \ud83d\ude00 \/")"), "\"中文 😀 /\"");
  EXPECT_EQ(rewrite(R"("\u0000\u001f\u007f\b\f\n\r\t\\\"")"),
            "\"\\u0000\\u001f\x7F\\b\\f\\n\\r\\t\\\\\\\"\"");
  EXPECT_EQ(rewrite("\"\u2028\""), "\"\u2028\"");
}

TEST(PythonJson, KeepsNumbers) {
  EXPECT_EQ(rewrite("1.0"), "1.0");
  EXPECT_EQ(rewrite("1e-7"), "1e-07");
  EXPECT_EQ(rewrite("[0.1, 100.0, -0.0, -0, 1E2]"), "[0.1, 100.0, -0.0, 0, 100.0]");
  EXPECT_EQ(rewrite("18446744073709551615"), "18446744073709551615");
  EXPECT_EQ(rewrite("-9223372036854775808"), "-9223372036854775808");
  // Beyond 64 bits Python's integers go on.
  EXPECT_EQ(rewrite("123456789012345678901234567890"), "123456789012345678901234567890");
  EXPECT_EQ(rewrite("[-123456789012345678901234567890]"), "[-123456789012345678901234567890]");
  const auto big = read_python_json("123456789012345678901234567890");
  ASSERT_TRUE(big);
  EXPECT_FALSE(big->is_number());
}

TEST(PythonJson, FloatsAreTheirShortestRepr) {
  EXPECT_EQ(python_float(0.0001), "0.0001");
  EXPECT_EQ(python_float(0.00001), "1e-05");
  EXPECT_EQ(python_float(123456789012345680.0), "1.2345678901234568e+17");
  EXPECT_EQ(python_float(1e16), "1e+16");
  EXPECT_EQ(python_float(1e15), "1000000000000000.0");
  EXPECT_EQ(python_float(9007199254740993.0), "9007199254740992.0");
  EXPECT_EQ(python_float(1.5), "1.5");
  EXPECT_EQ(python_float(-12.25), "-12.25");
  EXPECT_EQ(python_float(0.1 + 0.2), "0.30000000000000004");
  EXPECT_EQ(python_float(5e-324), "5e-324");
  EXPECT_EQ(python_float(1.7976931348623157e308), "1.7976931348623157e+308");
  EXPECT_EQ(python_float(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(python_float(std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(PythonJson, ARepeatedKeyKeepsItsPlaceAndTakesTheLastValue) {
  EXPECT_EQ(rewrite(R"({"a":1,"b":2,"a":3})"), R"({"a": 3, "b": 2})");
  EXPECT_EQ(rewrite(R"({"":1,"":{"":2}})"), R"({"": {"": 2}})");
}

TEST(PythonJson, RefusesWhatIsNoJson) {
  const std::string with_nul = std::string("{}") + '\0' + "x";
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("nope"), std::string("1 2"),
        std::string("\"\xFF\""), std::string("1e999"), std::string("[1,]"), with_nul}) {
    const auto value = read_python_json(text);
    ASSERT_FALSE(value) << text;
    EXPECT_EQ(value.error().code, Errc::invalid_argument);
  }
}

TEST(PythonJson, DepthIsBounded) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') +
           std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_EQ(rewrite(nested(kMaxJsonDepth)), nested(kMaxJsonDepth));
  EXPECT_THAT(rewrite(nested(kMaxJsonDepth + 1)), testing::HasSubstr("deeper than 128"));
  EXPECT_THAT(rewrite(nested(1000000)), testing::HasSubstr("deeper than 128"));
  // A document from elsewhere may be deeper than the reader lets through.
  nlohmann::ordered_json deep = 1;
  for (int i = 0; i <= kMaxJsonDepth; ++i) deep = nlohmann::ordered_json::array({std::move(deep)});
  EXPECT_FALSE(write_python_json(deep));
}

TEST(PythonJson, ManyKeysTakeLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":0";
  const auto value = read_python_json(text + "}");
  ASSERT_TRUE(value);
  EXPECT_EQ(value->size(), 200000u);
}

}  // namespace
}  // namespace cedar::model
