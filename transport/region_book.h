#pragma once
// Registered memory, and who may read it for how long. A lease ends once: when released, revoked or past its deadline AND
// no byte is being read under it any more; its callback says which came first.
//
// Threads: any. A mutex, because producers offer from their own threads and must not wait for the progress thread; it is
// held for look-ups only. Callbacks of ended leases are queued and run by the progress thread.

#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "transport/link.h"
#include "transport/transport.h"

namespace cedar::transport {

class RegionBook {
 public:
  RegionId add(const LinkRegion& region);
  /// The region, now forgotten. Errors: not_found; overloaded while in use.
  Result<LinkRegion> remove(RegionId region);
  /// Everything, whatever its use: for the end of the transport.
  std::vector<LinkRegion> remove_all();

  Result<LinkRegion> find(RegionId region) const;
  /// Errors: not_found, invalid_argument (outside the region, not host memory). The region is in use until unpin().
  Result<std::byte*> pin(RegionId region, uint64_t offset, uint64_t bytes);
  void unpin(RegionId region, uint64_t count = 1);

  /// Makes the region readable without a lease. REQUIRES: it exists.
  void publish(RegionId region);
  /// REQUIRES: ranges lie in the region. Errors: not_found; cancelled after end_all().
  Result<LeaseId> grant(RegionId region, std::vector<ByteRange> ranges, TimePoint deadline,
                        LeaseCallback on_end);
  void end(LeaseId lease, LeaseEnd how);

  /// Access to `ranges` from now until finish_reading(). Errors: not_found (region, lease), deadline_exceeded (lease),
  /// invalid_argument (outside of what was offered).
  Result<std::vector<ConstSegment>> start_reading(RegionId region, LeaseId lease,
                                                  std::span<const ByteRange> ranges, TimePoint now);
  void finish_reading(RegionId region, LeaseId lease);
  /// Was the lease alive until now, and are the ranges of what it offers? Errors: as start_reading().
  Status check(RegionId region, LeaseId lease, std::span<const ByteRange> ranges,
               TimePoint now) const;

  void expire(TimePoint now);
  std::optional<TimePoint> next_expiry() const;
  /// No lease can be granted any more, and those that live end as soon as nothing reads.
  void end_all();
  /// Callbacks of the leases that have ended since the last call.
  std::vector<std::function<void()>> take_ended();
  void fill(TransportStats& stats) const;

 private:
  struct Entry {
    LinkRegion region;
    uint64_t uses = 0;  // leases, readers, pulls into it
    bool published = false;
  };
  struct Lease {
    RegionId region;
    std::vector<ByteRange> ranges;  // ascending
    TimePoint deadline;
    LeaseCallback on_end;
    uint32_t readers = 0;
    std::optional<LeaseEnd> ended;  // waits for its readers
  };
  using Leases = std::unordered_map<LeaseId, Lease>;

  void end_locked(Leases::iterator lease, LeaseEnd how);
  void settle_locked(Leases::iterator lease);

  mutable std::mutex mutex_;
  std::unordered_map<RegionId, Entry> regions_;
  Leases leases_;
  std::multimap<TimePoint, LeaseId> expiries_;
  std::vector<std::function<void()>> ended_callbacks_;
  uint64_t last_region_ = 0;
  uint64_t last_lease_ = 0;
  bool closed_ = false;
  uint64_t released_ = 0, expired_ = 0, revoked_ = 0, unknown_ = 0;
};

}  // namespace cedar::transport
