#include "transport/descriptor.h"

#include "core/check.h"
#include "transport/wire.h"

namespace cedar::transport {
namespace {

constexpr uint32_t kMagic = 0x31445243;  // "CRD1"
constexpr uint64_t kMaxExtent = uint64_t{1} << 62;

Error bad(const std::string& field, const std::string& value) {
  return make_error(Errc::invalid_argument, "region descriptor: " + field + " " + value);
}

}  // namespace

std::string to_string(const NodeIdentity& identity) {
  return "node " + std::to_string(identity.node.value) + ", generation " +
         std::to_string(identity.generation);
}

uint64_t RegionDescriptor::bytes() const {
  uint64_t sum = 0;
  for (const ByteRange& range : ranges) sum += range.bytes;
  return sum;
}

std::vector<std::byte> serialise(const RegionDescriptor& descriptor) {
  CEDAR_ASSERT(descriptor.ranges.size() <= RegionDescriptor::kMaxRanges &&
                   descriptor.key.size() <= RegionDescriptor::kMaxKeyBytes,
               std::to_string(descriptor.ranges.size()) + " ranges");
  ByteWriter out;
  out.put(kMagic)
      .put(descriptor.owner.node.value)
      .put(descriptor.owner.generation)
      .put(descriptor.region.value)
      .put(descriptor.lease.value)
      .put(static_cast<uint8_t>(descriptor.kind))
      .put(static_cast<uint16_t>(descriptor.key.size()))
      .put_bytes(descriptor.key)
      .put(static_cast<uint32_t>(descriptor.ranges.size()));
  for (const ByteRange& range : descriptor.ranges) {
    out.put(range.offset).put(range.bytes).put(static_cast<uint8_t>(range.crc32c.has_value()));
    out.put(range.crc32c.value_or(0));
  }
  return out.take();
}

Result<RegionDescriptor> parse_descriptor(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  RegionDescriptor result;
  if (const auto magic = in.get<uint32_t>(); magic != kMagic)
    return bad("magic", std::to_string(magic));
  result.owner.node = NodeId(in.get<uint32_t>());
  result.owner.generation = in.get<uint64_t>();
  result.region = RegionId(in.get<uint64_t>());
  result.lease = LeaseId(in.get<uint64_t>());
  const auto kind = in.get<uint8_t>();
  if (kind > static_cast<uint8_t>(MemoryKind::cuda))
    return bad("memory kind", std::to_string(kind));
  result.kind = static_cast<MemoryKind>(kind);
  const auto key_bytes = in.get<uint16_t>();
  if (key_bytes > RegionDescriptor::kMaxKeyBytes)
    return bad("key bytes", std::to_string(key_bytes));
  const auto key = in.get_bytes(key_bytes);
  result.key.assign(key.begin(), key.end());
  const auto count = in.get<uint32_t>();
  constexpr size_t kRangeBytes = 8 + 8 + 1 + 4;
  // Before anything is reserved: a count that the bytes cannot hold is a lie.
  if (in.failed() || count > RegionDescriptor::kMaxRanges ||
      in.rest().size() != count * kRangeBytes) {
    return bad("size", std::to_string(bytes.size()) + " bytes does not fit " +
                           std::to_string(count) + " ranges");
  }
  result.ranges.reserve(count);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < count; ++i) {
    ByteRange range;
    range.offset = in.get<uint64_t>();
    range.bytes = in.get<uint64_t>();
    const auto flag = in.get<uint8_t>();
    const auto crc = in.get<uint32_t>();
    if (flag > 1) return bad("range checksum flag", std::to_string(flag));
    if (flag == 1) range.crc32c = crc;
    if (range.bytes == 0 || range.bytes > kMaxExtent || range.offset > kMaxExtent)
      return bad("range " + std::to_string(i),
                 "of " + std::to_string(range.bytes) + " bytes at " + std::to_string(range.offset));
    sum += range.bytes;
    if (sum > kMaxExtent) return bad("ranges", "sum to more than 2^62 bytes");
    result.ranges.push_back(range);
  }
  return result;
}

}  // namespace cedar::transport
