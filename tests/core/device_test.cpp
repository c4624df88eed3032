#include "core/device.h"

#include <gtest/gtest.h>

#include <string>

namespace cedar {
namespace {

TEST(Device, ParsesTheThreeSpellings) {
  const struct {
    const char* text;
    Device device;
  } cases[] = {
      {"cpu", {DeviceKind::cpu, 0}},         {"cuda", {DeviceKind::cuda, 0}},
      {"cuda:0", {DeviceKind::cuda, 0}},     {"cuda:7", {DeviceKind::cuda, 7}},
      {"cuda:127", {DeviceKind::cuda, 127}},
  };
  for (const auto& c : cases) {
    auto device = parse_device(c.text);
    ASSERT_TRUE(device) << c.text;
    EXPECT_EQ(*device, c.device) << c.text;
  }
}

TEST(Device, TextRoundTrips) {
  for (Device device : {Device{}, Device{DeviceKind::cuda, 0}, Device{DeviceKind::cuda, 5}}) {
    auto parsed = parse_device(to_string(device));
    ASSERT_TRUE(parsed) << to_string(device);
    EXPECT_EQ(*parsed, device);
  }
}

TEST(Device, AnythingElseIsRefusedWithTheText) {
  for (const char* text : {"", "CPU", "cpu:0", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:1x",
                           "cuda: 1", "cuda:99999999999", "cuda1", " cpu"}) {
    auto device = parse_device(text);
    ASSERT_FALSE(device) << "accepted '" << text << "'";
    EXPECT_EQ(device.error().code, Errc::invalid_argument);
    EXPECT_NE(device.error().context.find("'" + std::string(text) + "'"), std::string::npos);
  }
}

}  // namespace
}  // namespace cedar
