#include "core/device_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "core/buffer.h"

namespace cedar {
namespace {

const Device kCuda{DeviceKind::cuda, 0};

class DeviceMemoryTest : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (GetParam() == kCuda && cuda_device_count() == 0) GTEST_SKIP() << "this machine lacks cuda";
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, DeviceMemoryTest, ::testing::Values(Device{}, kCuda),
                         [](const auto& instance) {
                           return std::string(instance.param == kCuda ? "cuda" : "cpu");
                         });

TEST_P(DeviceMemoryTest, BytesSurviveTheRoundTrip) {
  const Device device = GetParam();
  ASSERT_TRUE(check_device(device));
  auto first = Buffer::allocate(device, 100'003), second = Buffer::allocate(device, 100'003);
  ASSERT_TRUE(first && second);
  std::vector<uint8_t> sent(100'003), received(sent.size(), 0xee);
  std::iota(sent.begin(), sent.end(), uint8_t{7});
  const int64_t bytes = first->bytes();
  ASSERT_TRUE(copy_to_device(device, first->data(), sent.data(), bytes));
  ASSERT_TRUE(copy_on_device(device, second->data(), first->data(), bytes));
  ASSERT_TRUE(copy_to_host(device, received.data(), second->data(), bytes));
  EXPECT_EQ(received, sent);

  ASSERT_TRUE(fill_zero(device, first->data() + 3, 10));
  ASSERT_TRUE(copy_to_host(device, received.data(), first->data(), bytes));
  std::fill_n(sent.begin() + 3, 10, uint8_t{0});
  EXPECT_EQ(received, sent);
}

TEST_P(DeviceMemoryTest, StreamsOrderTheirWorkAndPinnedMemoryIsReadWithoutStaging) {
  const Device device = GetParam();
  auto stream = Stream::create(device);
  ASSERT_TRUE(stream);
  EXPECT_EQ(stream->device(), device);
  auto pinned = PinnedBuffer::allocate(device, 4096), back = PinnedBuffer::allocate(device, 4096);
  auto memory = Buffer::zeroed(device, 4096);
  ASSERT_TRUE(pinned && back && memory);
  std::memset(pinned->data(), 0x5a, 4096);
  ASSERT_TRUE(copy_to_device(device, memory->data(), pinned->data(), 4096, stream->handle()));
  ASSERT_TRUE(fill_zero(device, memory->data(), 1, stream->handle()));
  ASSERT_TRUE(copy_to_host(device, back->data(), memory->data(), 4096, stream->handle()));
  ASSERT_TRUE(stream->wait());
  EXPECT_EQ(back->as<uint8_t>()[0], 0);
  EXPECT_EQ(back->as<uint8_t>()[1], 0x5a);
  EXPECT_EQ(back->as<uint8_t>()[4095], 0x5a);
}

TEST_P(DeviceMemoryTest, NothingAndNegativeSizes) {
  const Device device = GetParam();
  EXPECT_TRUE(copy_to_device(device, nullptr, nullptr, 0));
  EXPECT_TRUE(fill_zero(device, nullptr, 0));
  const Status status = copy_to_host(device, nullptr, nullptr, -1);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::invalid_argument);
  EXPECT_FALSE(PinnedBuffer::allocate(device, -1));
}

TEST_P(DeviceMemoryTest, MemorySizesAreSane) {
  const auto memory = device_memory(GetParam());
  ASSERT_TRUE(memory);
  EXPECT_GT(memory->free_bytes, 0);
  EXPECT_GE(memory->total_bytes, memory->free_bytes);
}

TEST_P(DeviceMemoryTest, TooLargeNamesTheNeed) {
  const auto buffer = Buffer::allocate(GetParam(), int64_t{1} << 50);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code, Errc::out_of_memory);
  EXPECT_NE(buffer.error().context.find("1125899906842624 bytes"), std::string::npos);
  if (GetParam() == kCuda) {
    EXPECT_NE(buffer.error().context.find("are free"), std::string::npos);
  }
}

TEST(DeviceMemory, MissingDeviceIsUnsupportedAndNamed) {
  const Device missing{DeviceKind::cuda, 63};
  uint8_t byte = 0;
  for (const Status& status : {check_device(missing), copy_to_device(missing, &byte, &byte, 1),
                               fill_zero(missing, &byte, 1), synchronize(missing)}) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::unsupported);
    EXPECT_NE(status.error().context.find("cuda:63"), std::string::npos);
  }
  EXPECT_FALSE(device_memory(missing));
  EXPECT_FALSE(Stream::create(missing));
  EXPECT_FALSE(PinnedBuffer::allocate(missing, 1));
  EXPECT_FALSE(Buffer::allocate(missing, 1));
}

}  // namespace
}  // namespace cedar
