#pragma once
// Bytes between processes: the consumer pulls what a producer offers. Small messages of the data plane go beside it.
//
// Threads: every method may be called from any thread, callbacks and handlers included, except shutdown() and the
// destructor, which wait for the progress thread. Callbacks run on the progress thread and must not block. register_memory,
// allocate and unregister wait for that thread (microseconds to a millisecond): call them at start, not in a scheduled actor.
// docs/transport.md: how it works and what happens when something breaks.

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "transport/descriptor.h"
#include "transport/options.h"
#include "transport/stats.h"
#include "transport/types.h"

namespace cedar::transport {

struct Region {
  RegionId id;
  MemoryBlock memory;
};

/// Where the bytes of the descriptor's range with the same index go.
struct LocalRange {
  RegionId region;  // of this transport, host memory
  uint64_t offset = 0;
};

struct PullRequest {
  RegionDescriptor source;
  std::vector<LocalRange> target;  // one per range of the source; they must not overlap
  TimePoint deadline;
  bool release_lease =
      true;  // when the pull has succeeded; a failed pull leaves the lease to retry or to release
  bool verify_checksums = true;  // of the ranges that have one
};

enum class LeaseEnd : uint8_t { released, expired, revoked, shutdown };

struct OfferRequest {
  RegionId region;
  std::vector<ByteRange> ranges;  // crc32c is filled in when `checksums` is set
  bool checksums = false;
  /// Nobody reads these ranges under the lease after this moment, except for what is on its way then. Without one
  /// the region is published: it stays readable until it is unregistered.
  std::optional<TimePoint> lease_deadline;
};
using LeaseCallback = std::function<void(LeaseId, LeaseEnd)>;

struct PeerAddress {
  std::string host;  // numeric
  uint16_t port = 0;
};
using ConnectCallback = std::function<void(Result<PeerInfo>)>;

/// Offered ranges where they are. Their lease does not end, and their region stays, while this lives; it must not outlive
/// the transport.
class InPlaceRead {
 public:
  InPlaceRead(std::vector<std::span<const std::byte>> ranges, std::function<void()> finish)
      : ranges_(std::move(ranges)), finish_(std::move(finish)) {}
  InPlaceRead(InPlaceRead&& other) noexcept
      : ranges_(std::move(other.ranges_)), finish_(std::exchange(other.finish_, nullptr)) {}
  InPlaceRead& operator=(InPlaceRead&&) = delete;
  ~InPlaceRead() {
    if (finish_) finish_();
  }

  std::span<const std::byte> operator[](size_t range_idx) const { return ranges_[range_idx]; }

 private:
  std::vector<std::span<const std::byte>> ranges_;
  std::function<void()> finish_;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual NodeIdentity identity() const = 0;
  virtual uint16_t listen_port() const = 0;

  // Memory.

  /// Host memory that peers on this machine can read in place where the link allows it. Zeroed. Errors: out_of_memory.
  virtual Result<Region> allocate(uint64_t bytes) = 0;
  /// Errors: invalid_argument, unsupported (memory kind), io_error.
  virtual Result<Region> register_memory(const MemoryBlock& memory) = 0;
  /// Frees what allocate() made. Errors: not_found; overloaded while leases or transfers use the region (retry after).
  virtual Status unregister(RegionId region) = 0;

  // Connections.

  /// The callback comes once, at the latest at the deadline. With `expected`, another node or generation is refused.
  /// Errors there: unavailable, deadline_exceeded, stale_generation, unsupported (protocol), invalid_argument (cluster).
  virtual void connect(const PeerAddress& address, std::optional<NodeIdentity> expected,
                       TimePoint deadline, ConnectCallback callback) = 0;
  /// Pulls from the peer fail with cancelled; the peer sees the connection end.
  virtual void disconnect(PeerId peer) = 0;
  virtual std::vector<PeerInfo> peers() const = 0;

  // Producer.

  /// A descriptor to send to the consumer. `on_end` comes exactly once per lease, when no byte is being read any more.
  /// Errors: not_found (region), invalid_argument (range), cancelled after shutdown().
  virtual Result<RegionDescriptor> offer(OfferRequest request, LeaseCallback on_end = {}) = 0;
  /// Ends a lease now. Unknown: ignored, it has ended.
  virtual void revoke(LeaseId lease) = 0;

  // Consumer.

  /// Fetches every range. The callback comes exactly once, on success or by deadline + cancel_grace_ms, and nothing
  /// writes to the target after it. The owner must be connected, or be this transport itself. Errors here: overloaded, cancelled after shutdown(). In the
  /// callback: invalid_argument, not_found, unavailable, stale_generation, deadline_exceeded, cancelled, overloaded,
  /// checksum_mismatch.
  virtual Result<TransferId> pull(PullRequest request, Completion callback) = 0;
  /// The callback still comes: with cancelled, unless the pull had ended.
  virtual void cancel(TransferId transfer) = 0;
  /// Tells the owner that a lease is no longer needed. Sent once if it is connected; otherwise the lease expires there.
  virtual void release(const NodeIdentity& owner, LeaseId lease) = 0;
  /// The bytes of a range where they are, when owner and consumer share an address space; empty otherwise. Valid until the
  /// lease ends.
  virtual std::span<const std::byte> view(const RegionDescriptor& source,
                                          size_t range_idx) const = 0;
  /// The same for this transport's own memory, under the lease like a pull: a lease that ends meanwhile, by whatever way,
  /// ends when the reader is done. Errors: unsupported (another owner), and those of a pull.
  virtual Result<InPlaceRead> read_in_place(const RegionDescriptor& source) = 0;

  // Small messages: in order per peer, delivered at most once. Errors here: overloaded, invalid_argument (size), cancelled
  // after shutdown(). `done` may be empty; ok means handed to the link, not delivered.
  virtual Status send(PeerId peer, uint16_t kind, std::vector<std::byte> bytes,
                      Completion done = {}) = 0;

  /// As of a moment ago; never waits for the progress thread.
  virtual TransportStats stats() const = 0;

  /// Ends every transfer, lease and connection, calls back for each, and stops the progress thread. Idempotent; the
  /// destructor does it.
  virtual void shutdown() = 0;
};

}  // namespace cedar::transport
