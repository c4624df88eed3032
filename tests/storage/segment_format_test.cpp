#include "storage/segment_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace cedar::storage {
namespace {

SegmentHeader header() {
  SegmentHeader header;
  header.shape = {113920, 2257};
  header.number = 42;
  header.created_s = 1796000000;
  header.identity = "model, layout";
  return header;
}

SlotHeader slot(uint8_t fill) {
  SlotHeader header;
  header.key.bytes.fill(fill);
  header.segment = 42;
  header.written_s = 1796000001;
  header.value_crc32c = 0xdeadbeef;
  return header;
}

TEST(SegmentFormat, HeaderComesBack) {
  std::vector<std::byte> bytes(static_cast<size_t>(kSegmentHeaderBytes));
  encode(header(), bytes);
  const auto back = decode_segment_header(bytes);
  ASSERT_TRUE(back.has_value()) << back.error().message();
  EXPECT_EQ(back->shape, header().shape);
  EXPECT_EQ(back->number, 42u);
  EXPECT_EQ(back->created_s, 1796000000u);
  EXPECT_EQ(back->identity, "model, layout");
}

// The bytes of a file that lies on disks: a change of the layout needs another version.
TEST(SegmentFormat, HeaderHasTheDocumentedLayout) {
  std::vector<std::byte> bytes(static_cast<size_t>(kSegmentHeaderBytes));
  encode(header(), bytes);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), 8);
  EXPECT_EQ(text, "CEDRSEG1");
  EXPECT_EQ(bytes[8], std::byte{1});
  EXPECT_EQ(bytes[12], std::byte{113920 & 0xff});
  EXPECT_EQ(bytes[20], std::byte{2257 & 0xff});
  EXPECT_EQ(bytes[28], std::byte{42});
  EXPECT_EQ(bytes[44], std::byte{13});
}

TEST(SegmentFormat, EveryFlippedBitOfAHeaderIsSeen) {
  std::vector<std::byte> good(static_cast<size_t>(kSegmentHeaderBytes));
  encode(header(), good);
  const size_t used = 48 + header().identity.size() + 4;
  for (size_t bit = 0; bit < 8 * used; ++bit) {
    auto bytes = good;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(decode_segment_header(bytes).has_value()) << "bit " << bit;
  }
}

TEST(SegmentFormat, AnotherVersionIsNamed) {
  std::vector<std::byte> bytes(static_cast<size_t>(kSegmentHeaderBytes));
  encode(header(), bytes);
  bytes[8] = std::byte{9};
  const auto back = decode_segment_header(bytes);
  ASSERT_FALSE(back.has_value());
  EXPECT_EQ(back.error().code, Errc::unsupported);
  EXPECT_THAT(back.error().context, testing::HasSubstr("version 9"));
}

TEST(SegmentFormat, SlotComesBackForItsSegmentOnly) {
  std::vector<std::byte> bytes(static_cast<size_t>(kSlotHeaderBytes));
  encode(slot(7), bytes);
  const auto back = decode_slot_header(bytes, 42);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->key, slot(7).key);
  EXPECT_EQ(back->written_s, slot(7).written_s);
  EXPECT_EQ(back->value_crc32c, slot(7).value_crc32c);
  EXPECT_FALSE(decode_slot_header(bytes, 43).has_value());
  for (size_t bit = 0; bit < 8 * 60; ++bit) {
    auto torn = bytes;
    torn[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(decode_slot_header(torn, 42).has_value()) << "bit " << bit;
  }
}

TEST(SegmentFormat, FooterComesBackWithItsGaps) {
  const SegmentShape shape{1000, 5};
  std::vector<SlotHeader> slots(5);
  slots[0] = slot(1);
  slots[3] = slot(2);
  std::vector<std::byte> bytes(static_cast<size_t>(shape.footer_bytes()));
  encode_footer(slots, shape, bytes);
  const auto back = decode_footer(bytes, 42, shape);
  ASSERT_TRUE(back.has_value());
  ASSERT_EQ(back->size(), 5u);
  EXPECT_EQ((*back)[0].key, slot(1).key);
  EXPECT_EQ((*back)[1].key, StoreKey{});
  EXPECT_EQ((*back)[3].key, slot(2).key);
  bytes[64 + 70] ^= std::byte{1};
  EXPECT_FALSE(decode_footer(bytes, 42, shape).has_value());
}

TEST(SegmentFormat, AnyBytesAreSafe) {
  std::mt19937 random(3);
  const SegmentShape shape{1000, 5};
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bytes(static_cast<size_t>(kSegmentHeaderBytes));
    if (i % 2 == 0) encode(header(), bytes);
    for (int n = 0; n < 8; ++n) bytes[random() % 128] = static_cast<std::byte>(random());
    (void)decode_segment_header(bytes);
    (void)decode_slot_header(bytes, 42);
    (void)decode_footer(bytes, 42, shape);
    (void)decode_segment_header(std::span(bytes).first(random() % 64));
  }
}

TEST(SegmentShape, FillsWhatItMayAndNotMore) {
  for (const int64_t value : {1, 4032, 4033, 27136, 113920}) {
    for (const int64_t bytes : {10'000, 200'000, 1'000'000, 268'435'456}) {
      const SegmentShape shape = shape_for(value, bytes);
      if (shape.slots == 0) continue;
      EXPECT_LE(shape.file_bytes(), bytes);
      EXPECT_GT((SegmentShape{value, shape.slots + 1}).file_bytes(), bytes);
      EXPECT_EQ(shape.slot_offset(1) % kFileAlignment, 0);
    }
  }
  // A block of the release loses 0.7 % to headers and alignment.
  EXPECT_EQ((SegmentShape{113920, 1}).slot_bytes(), 114688);
}

}  // namespace
}  // namespace cedar::storage
