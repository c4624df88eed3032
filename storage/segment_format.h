#pragma once
// The bytes of a segment file: docs/formats/segment.md. Numbers are little-endian; every header carries a checksum of its own.

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/result.h"
#include "storage/file_io.h"

namespace cedar::storage {

/// Names a value for ever: whoever has the key knows the bytes.
struct StoreKey {
  std::array<uint8_t, 32> bytes{};
  friend auto operator<=>(const StoreKey&, const StoreKey&) = default;
};
struct HashStoreKey {
  /// Keys are digests: any of their bytes will do.
  size_t operator()(const StoreKey& key) const noexcept {
    size_t value = 0;
    std::memcpy(&value, key.bytes.data(), sizeof value);
    return value;
  }
};

inline constexpr uint32_t kSegmentVersion = 1;
inline constexpr int64_t kSegmentHeaderBytes = kFileAlignment;
inline constexpr int64_t kSlotHeaderBytes = 64;

/// Sizes of a segment whose slots hold values of `value_bytes`: [header][slots][footer], each aligned.
struct SegmentShape {
  int64_t value_bytes = 0;
  int64_t slots = 0;

  int64_t slot_bytes() const;
  int64_t slot_offset(int64_t slot) const { return kSegmentHeaderBytes + slot * slot_bytes(); }
  int64_t footer_offset() const { return slot_offset(slots); }
  int64_t footer_bytes() const;
  int64_t file_bytes() const { return footer_offset() + footer_bytes(); }
  friend bool operator==(const SegmentShape&, const SegmentShape&) = default;
};
/// The largest that fits into `bytes`; no slots: not even one does.
SegmentShape shape_for(int64_t value_bytes, int64_t bytes);

struct SegmentHeader {
  SegmentShape shape;
  uint64_t number = 0;     // grows with every segment of a store
  uint64_t created_s = 0;  // Unix time
  std::string identity;    // of what the values mean; at most kMaxIdentity bytes
  static constexpr size_t kMaxIdentity = 256;
};
/// REQUIRES: to.size() == kSegmentHeaderBytes.
void encode(const SegmentHeader& header, std::span<std::byte> to);
/// Any bytes are safe. Errors: unsupported (another version), invalid_argument (no segment, or torn).
Result<SegmentHeader> decode_segment_header(std::span<const std::byte> bytes);

struct SlotHeader {
  StoreKey key;
  uint64_t segment = 0;    // its number: bytes of another file never pass for this one's
  uint64_t written_s = 0;  // Unix time
  uint32_t value_crc32c = 0;
};
/// REQUIRES: to.size() >= kSlotHeaderBytes.
void encode(const SlotHeader& header, std::span<std::byte> to);
/// Nothing for anything but a whole header of this segment.
std::optional<SlotHeader> decode_slot_header(std::span<const std::byte> bytes, uint64_t segment);

/// The headers of a finished segment once more, together, so that a store opens with one read a segment.
void encode_footer(std::span<const SlotHeader> slots, const SegmentShape& shape,
                   std::span<std::byte> to);
/// Nothing: the segment was not finished, or the footer is torn. Slots that hold nothing have an empty key.
std::optional<std::vector<SlotHeader>> decode_footer(std::span<const std::byte> bytes,
                                                     uint64_t segment, const SegmentShape& shape);

}  // namespace cedar::storage
