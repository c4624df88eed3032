#include "core/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace cedar {
namespace {

static_assert(!std::is_copy_constructible_v<Buffer> && !std::is_copy_assignable_v<Buffer>);
static_assert(std::is_nothrow_move_constructible_v<Buffer>);

TEST(Buffer, DefaultOwnsNothing) {
  Buffer buffer;
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.bytes(), 0);
}

TEST(Buffer, AllocationsAreAlignedAndReportTheirSize) {
  for (int64_t bytes : {0, 1, 63, 64, 65, 4097}) {
    auto buffer = Buffer::allocate(Device{}, bytes);
    ASSERT_TRUE(buffer) << bytes;
    EXPECT_EQ(buffer->bytes(), bytes);
    EXPECT_NE(buffer->data(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % Buffer::kAlignment, 0U) << bytes;
    EXPECT_EQ(buffer->device(), Device{});
  }
}

TEST(Buffer, ZeroedIsZero) {
  // The first one leaves dirty memory behind for the second to be given.
  {
    auto dirty = Buffer::allocate(Device{}, 10'000);
    ASSERT_TRUE(dirty);
    std::fill_n(dirty->as<uint8_t>(), 10'000, uint8_t{0xff});
  }
  auto buffer = Buffer::zeroed(Device{}, 10'000);
  ASSERT_TRUE(buffer);
  const auto* p = std::as_const(*buffer).as<uint8_t>();
  EXPECT_TRUE(std::all_of(p, p + 10'000, [](uint8_t b) { return b == 0; }));
}

TEST(Buffer, MoveTransfersOwnership) {
  auto allocated = Buffer::allocate(Device{}, 128);
  ASSERT_TRUE(allocated);
  Buffer first = std::move(*allocated);
  std::byte* data = first.data();
  Buffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.bytes(), 128);
  EXPECT_EQ(first.data(),
            nullptr);  // NOLINT(bugprone-use-after-move): the moved-from state is the point
  auto third = Buffer::allocate(Device{}, 64);
  ASSERT_TRUE(third);
  second = std::move(*third);
  EXPECT_EQ(second.bytes(), 64);
}

TEST(Buffer, MovedFromBufferReportsNoBytes) {
  auto allocated = Buffer::allocate(Device{}, 128);
  ASSERT_TRUE(allocated);
  Buffer first = std::move(*allocated);
  Buffer second = std::move(first);
  EXPECT_EQ(first.bytes(), 0);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(second.bytes(), 128);
}

TEST(Buffer, TooLargeIsOutOfMemoryWithTheSize) {
  auto buffer = Buffer::allocate(Device{}, int64_t{1} << 60);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code, Errc::out_of_memory);
  EXPECT_NE(buffer.error().context.find("1152921504606846976"), std::string::npos);
}

TEST(Buffer, SizeThatCannotBePaddedIsRefused) {
  auto buffer = Buffer::allocate(Device{}, INT64_MAX);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code, Errc::out_of_memory);
}

TEST(Buffer, NegativeSizeIsRefused) {
  auto buffer = Buffer::allocate(Device{}, -1);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code, Errc::invalid_argument);
}

TEST(Buffer, DeviceThatThisBuildLacksIsUnsupported) {
#ifndef CEDAR_HAVE_CUDA
  auto buffer = Buffer::zeroed(Device{DeviceKind::cuda, 3}, 16);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code, Errc::unsupported);
  EXPECT_NE(buffer.error().context.find("cuda:3"), std::string::npos);
#endif
}

TEST(Buffer, AdoptedMemoryIsHeldAndNotFreed) {
  auto owner = std::make_shared<std::vector<std::byte>>(64, std::byte{7});
  const std::weak_ptr<void> watch = owner;
  std::byte* const data = owner->data();
  Buffer buffer = Buffer::adopt(data, 64, std::move(owner));
  ASSERT_FALSE(watch.expired());
  EXPECT_EQ(buffer.data()[63], std::byte{7});
  Buffer moved = std::move(buffer);
  ASSERT_FALSE(watch.expired());
  auto ordinary = Buffer::allocate(Device{}, 64);
  moved = std::move(*ordinary);
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(moved.bytes(), 64);
}

}  // namespace
}  // namespace cedar
