#include "storage/segment_format.h"

#include <algorithm>
#include <type_traits>

#include "core/crc32c.h"
#include "core/units.h"

namespace cedar::storage {
namespace {

constexpr uint64_t kSegmentMagic = 0x3147455352444543;  // "CEDRSEG1"
constexpr uint32_t kSlotMagic = 0x54534c43;             // "CLST"
constexpr uint32_t kFooterMagic = 0x544f4643;           // "CFOT"
constexpr int64_t kFooterHeaderBytes = 64;

class Writer {
 public:
  explicit Writer(std::span<std::byte> to) : to_(to) {}
  template <class T>
  void put(T value) requires std::is_unsigned_v<T> {
    for (size_t i = 0; i < sizeof(T); ++i) to_[at_++] = static_cast<std::byte>(value >> (8 * i));
  }
  void put(std::span<const uint8_t> bytes) {
    std::memcpy(to_.data() + at_, bytes.data(), bytes.size());
    at_ += bytes.size();
  }
  /// Of everything so far.
  void put_checksum() { put(crc32c(to_.first(at_))); }

 private:
  std::span<std::byte> to_;
  size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> from) : from_(from) {}
  template <class T>
  T get() {
    T value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<T>(static_cast<T>(from_[at_++]) << (8 * i));
    }
    return value;
  }
  void get(std::span<uint8_t> bytes) {
    std::memcpy(bytes.data(), from_.data() + at_, bytes.size());
    at_ += bytes.size();
  }
  bool checksum_good() {
    const uint32_t expected = crc32c(from_.first(at_));
    return get<uint32_t>() == expected;
  }

 private:
  std::span<const std::byte> from_;
  size_t at_ = 0;
};

}  // namespace

int64_t SegmentShape::slot_bytes() const {
  return align_up(kSlotHeaderBytes + value_bytes, kFileAlignment);
}

int64_t SegmentShape::footer_bytes() const {
  return align_up(kFooterHeaderBytes + slots * kSlotHeaderBytes, kFileAlignment);
}

SegmentShape shape_for(int64_t value_bytes, int64_t bytes) {
  SegmentShape shape{value_bytes, 0};
  const int64_t room = bytes - kSegmentHeaderBytes;
  shape.slots = std::max<int64_t>(0, room / (shape.slot_bytes() + kSlotHeaderBytes));
  while (shape.slots > 0 && shape.file_bytes() > bytes) --shape.slots;
  return shape;
}

void encode(const SegmentHeader& header, std::span<std::byte> to) {
  std::fill(to.begin(), to.end(), std::byte{0});
  Writer writer(to);
  writer.put(kSegmentMagic);
  writer.put(kSegmentVersion);
  writer.put(static_cast<uint64_t>(header.shape.value_bytes));
  writer.put(static_cast<uint64_t>(header.shape.slots));
  writer.put(header.number);
  writer.put(header.created_s);
  writer.put(static_cast<uint32_t>(header.identity.size()));
  writer.put(
      std::span(reinterpret_cast<const uint8_t*>(header.identity.data()), header.identity.size()));
  writer.put_checksum();
}

Result<SegmentHeader> decode_segment_header(std::span<const std::byte> bytes) {
  const auto torn = [] { return make_error(Errc::invalid_argument, "no whole segment header"); };
  if (static_cast<int64_t>(bytes.size()) < kSegmentHeaderBytes) return torn();
  Reader reader(bytes);
  if (reader.get<uint64_t>() != kSegmentMagic) return torn();
  if (const auto version = reader.get<uint32_t>(); version != kSegmentVersion) {
    return make_error(Errc::unsupported, "segment version " + std::to_string(version) +
                                             ", this program writes " +
                                             std::to_string(kSegmentVersion));
  }
  SegmentHeader header;
  header.shape.value_bytes = static_cast<int64_t>(reader.get<uint64_t>());
  header.shape.slots = static_cast<int64_t>(reader.get<uint64_t>());
  header.number = reader.get<uint64_t>();
  header.created_s = reader.get<uint64_t>();
  const auto length = reader.get<uint32_t>();
  if (length > SegmentHeader::kMaxIdentity) return torn();
  header.identity.resize(length);
  reader.get({reinterpret_cast<uint8_t*>(header.identity.data()), length});
  if (!reader.checksum_good()) return torn();
  return header;
}

void encode(const SlotHeader& header, std::span<std::byte> to) {
  Writer writer(to);
  writer.put(kSlotMagic);
  writer.put(std::span<const uint8_t>(header.key.bytes));
  writer.put(header.segment);
  writer.put(header.written_s);
  writer.put(header.value_crc32c);
  writer.put_checksum();
}

std::optional<SlotHeader> decode_slot_header(std::span<const std::byte> bytes, uint64_t segment) {
  if (static_cast<int64_t>(bytes.size()) < kSlotHeaderBytes) return std::nullopt;
  Reader reader(bytes);
  if (reader.get<uint32_t>() != kSlotMagic) return std::nullopt;
  SlotHeader header;
  reader.get(std::span<uint8_t>(header.key.bytes));
  header.segment = reader.get<uint64_t>();
  header.written_s = reader.get<uint64_t>();
  header.value_crc32c = reader.get<uint32_t>();
  if (!reader.checksum_good() || header.segment != segment) return std::nullopt;
  return header;
}

void encode_footer(std::span<const SlotHeader> slots, const SegmentShape& shape,
                   std::span<std::byte> to) {
  std::fill(to.begin(), to.end(), std::byte{0});
  const std::span<std::byte> table = to.subspan(kFooterHeaderBytes);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].key != StoreKey{}) {
      encode(slots[i], table.subspan(i * static_cast<size_t>(kSlotHeaderBytes)));
    }
  }
  const auto bytes = static_cast<size_t>(shape.slots * kSlotHeaderBytes);
  Writer writer(to);
  writer.put(kFooterMagic);
  writer.put(static_cast<uint64_t>(shape.slots));
  writer.put(crc32c(table.first(bytes)));
  writer.put_checksum();
}

std::optional<std::vector<SlotHeader>> decode_footer(std::span<const std::byte> bytes,
                                                     uint64_t segment, const SegmentShape& shape) {
  if (static_cast<int64_t>(bytes.size()) < shape.footer_bytes()) return std::nullopt;
  Reader reader(bytes);
  if (reader.get<uint32_t>() != kFooterMagic) return std::nullopt;
  if (reader.get<uint64_t>() != static_cast<uint64_t>(shape.slots)) return std::nullopt;
  const auto table_crc = reader.get<uint32_t>();
  if (!reader.checksum_good()) return std::nullopt;
  const auto table = bytes.subspan(static_cast<size_t>(kFooterHeaderBytes),
                                   static_cast<size_t>(shape.slots * kSlotHeaderBytes));
  if (crc32c(table) != table_crc) return std::nullopt;
  std::vector<SlotHeader> slots(static_cast<size_t>(shape.slots));
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto header =
        decode_slot_header(table.subspan(i * static_cast<size_t>(kSlotHeaderBytes)), segment);
    if (header) slots[i] = *header;
  }
  return slots;
}

}  // namespace cedar::storage
