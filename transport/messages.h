#pragma once
// Small messages of the data plane's own protocol. docs/transport.md lists them; one byte of type comes first.

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "transport/descriptor.h"

namespace cedar::transport {

constexpr uint16_t kProtocolVersion = 2;

/// First on every connection, from the side that connected. `expected` is checked by the receiver.
struct Hello {
  uint16_t version = kProtocolVersion;
  NodeIdentity sender;
  std::optional<NodeIdentity> expected;
  std::string cluster;
};
struct Welcome {
  NodeIdentity sender;
};
struct Refuse {
  Error error;
};
struct Ping {};
struct Pong {};
/// The connection ends because its sender wants it to.
struct Goodbye {
  std::string reason;
};
/// Send these ranges of a region as the data of (transfer, part).
struct PartRequest {
  static constexpr size_t kMaxRanges = 1024;
  TransferId transfer;
  uint32_t part = 0;
  uint64_t owner_generation = 0;
  RegionId region;
  LeaseId lease;
  std::vector<ByteRange> ranges;  // without checksums
};
struct PartRefused {
  TransferId transfer;
  uint32_t part = 0;
  Error error;
};
/// These ranges were read in place under a lease: are they of what was offered, and was it alive until now? Ends it if
/// `release`.
struct Confirm {
  static constexpr size_t kMaxRanges = RegionDescriptor::kMaxRanges;
  TransferId transfer;
  uint64_t owner_generation = 0;
  RegionId region;
  LeaseId lease;
  bool release = false;
  std::vector<ByteRange> ranges;  // without checksums
};
struct Confirmed {
  TransferId transfer;
  Error error;  // code ok: it was
};
struct Release {
  uint64_t owner_generation = 0;
  LeaseId lease;
};
struct UserMessage {
  uint16_t kind = 0;
  std::span<const std::byte> bytes;
};

using Message = std::variant<Hello, Welcome, Refuse, Ping, Pong, Goodbye, PartRequest, PartRefused,
                             Confirm, Confirmed, Release, UserMessage>;

std::vector<std::byte> encode(const Message& message);
/// Errors: invalid_argument. A UserMessage points into `bytes`.
Result<Message> decode(std::span<const std::byte> bytes);

}  // namespace cedar::transport
