#pragma once
// Words that every file of this room uses.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/ids.h"
#include "core/result.h"

namespace cedar::transport {

/// One connection to one life of a peer. Never reused within a process.
using PeerId = StrongId<struct PeerIdTag, uint64_t>;
/// Registered memory of one transport. Never reused within its life.
using RegionId = StrongId<struct RegionIdTag, uint64_t>;
/// One pull. Never reused within a transport's life.
using TransferId = StrongId<struct TransferIdTag, uint64_t>;

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

/// A node in one of its lives: a process that comes back on the same address has a higher generation.
struct NodeIdentity {
  NodeId node;
  uint64_t generation = 0;
  friend bool operator==(const NodeIdentity&, const NodeIdentity&) = default;
};
std::string to_string(const NodeIdentity& identity);  // "node 3, generation 7"

enum class MemoryKind : uint8_t {
  host = 0,
  cuda = 1,  // unsupported so far: stage through pinned host memory
};

/// Memory that its owner keeps alive until it has been unregistered.
struct MemoryBlock {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
  MemoryKind kind = MemoryKind::host;
  int32_t device = 0;  // ordinal, for MemoryKind::cuda
};

/// Bytes of one region. `crc32c` is of these bytes (core/crc32c.h) and is checked after a pull.
struct ByteRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::optional<uint32_t> crc32c;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

using Completion = std::function<void(Status)>;

}  // namespace cedar::transport
