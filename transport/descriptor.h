#pragma once
// What a producer tells a consumer about bytes to fetch. Travels over the control plane as bytes; docs/transport.md
// has the layout.

#include <span>
#include <vector>

#include "transport/types.h"

namespace cedar::transport {

struct RegionDescriptor {
  static constexpr size_t kMaxRanges = 65'536;
  static constexpr size_t kMaxKeyBytes = 4'096;

  NodeIdentity owner;
  RegionId region;
  LeaseId lease;  // 0: the region stays readable while its owner lives
  MemoryKind kind = MemoryKind::host;
  std::vector<std::byte>
      key;  // of the owner's link: base address and packed remote key; opaque here
  std::vector<ByteRange> ranges;

  uint64_t bytes() const;  // sum over ranges
  friend bool operator==(const RegionDescriptor&, const RegionDescriptor&) = default;
};

/// REQUIRES: at most kMaxRanges ranges and kMaxKeyBytes of key.
std::vector<std::byte> serialise(const RegionDescriptor& descriptor);

/// Any bytes are safe input. Errors: invalid_argument naming the field and the value; a descriptor with trailing bytes,
/// an empty range, or ranges whose end or sum does not fit 63 bits is refused.
Result<RegionDescriptor> parse_descriptor(std::span<const std::byte> bytes);

}  // namespace cedar::transport
