#include "transport/region_book.h"

#include <algorithm>

namespace cedar::transport {
namespace {

Error no_region(RegionId region) {
  return make_error(Errc::not_found,
                    "region " + std::to_string(region.value) + " is not registered");
}
Error no_lease(LeaseId lease) {
  return make_error(Errc::not_found, "lease " + std::to_string(lease.value) + " has ended");
}

bool inside(uint64_t offset, uint64_t bytes, uint64_t begin, uint64_t size) {
  return offset >= begin && offset - begin <= size && bytes <= size - (offset - begin);
}

Error outside(const ByteRange& range, const std::string& what) {
  return make_error(Errc::invalid_argument, "range of " + std::to_string(range.bytes) +
                                                " bytes at " + std::to_string(range.offset) +
                                                " is not in " + what);
}

/// True when [offset, offset + bytes) is covered; a read may span ranges that touch.
bool offered(const std::vector<ByteRange>& ascending, uint64_t offset, uint64_t bytes) {
  auto at = std::upper_bound(ascending.begin(), ascending.end(), offset,
                             [](uint64_t value, const ByteRange& r) { return value < r.offset; });
  if (at == ascending.begin()) return false;
  uint64_t covered = std::prev(at)->offset + std::prev(at)->bytes;
  for (; covered < offset + bytes && at != ascending.end() && at->offset <= covered; ++at)
    covered = std::max(covered, at->offset + at->bytes);
  return covered >= offset + bytes;
}

}  // namespace

RegionId RegionBook::add(const LinkRegion& region) {
  std::lock_guard lock(mutex_);
  const RegionId id(++last_region_);
  regions_.emplace(id, Entry{region});
  return id;
}

Result<LinkRegion> RegionBook::remove(RegionId region) {
  std::lock_guard lock(mutex_);
  const auto at = regions_.find(region);
  if (at == regions_.end()) return no_region(region);
  if (at->second.uses > 0) {
    return make_error(Errc::overloaded, "region " + std::to_string(region.value) + " has " +
                                            std::to_string(at->second.uses) + " uses");
  }
  LinkRegion removed = at->second.region;
  regions_.erase(at);
  return removed;
}

std::vector<LinkRegion> RegionBook::remove_all() {
  std::lock_guard lock(mutex_);
  std::vector<LinkRegion> all;
  for (auto& [id, entry] : regions_) all.push_back(entry.region);
  regions_.clear();
  return all;
}

Result<LinkRegion> RegionBook::find(RegionId region) const {
  std::lock_guard lock(mutex_);
  const auto at = regions_.find(region);
  if (at == regions_.end()) return no_region(region);
  return at->second.region;
}

Result<std::byte*> RegionBook::pin(RegionId region, uint64_t offset, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto at = regions_.find(region);
  if (at == regions_.end()) return no_region(region);
  const MemoryBlock& memory = at->second.region.memory;
  if (memory.kind != MemoryKind::host)
    return make_error(Errc::invalid_argument, "target must be host memory");
  if (!inside(offset, bytes, 0, memory.bytes))
    return outside(ByteRange{offset, bytes, {}}, "the target of " + std::to_string(memory.bytes));
  ++at->second.uses;
  return memory.data + offset;
}

void RegionBook::unpin(RegionId region, uint64_t count) {
  std::lock_guard lock(mutex_);
  const auto at = regions_.find(region);
  if (at != regions_.end()) at->second.uses -= std::min(at->second.uses, count);
}

void RegionBook::publish(RegionId region) {
  std::lock_guard lock(mutex_);
  const auto at = regions_.find(region);
  if (at != regions_.end()) at->second.published = true;
}

Result<LeaseId> RegionBook::grant(RegionId region, std::vector<ByteRange> ranges,
                                  TimePoint deadline, LeaseCallback on_end) {
  std::sort(ranges.begin(), ranges.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.offset < b.offset; });
  std::lock_guard lock(mutex_);
  if (closed_) return make_error(Errc::cancelled, "transport is shut down");
  const auto at = regions_.find(region);
  if (at == regions_.end()) return no_region(region);
  ++at->second.uses;
  const LeaseId id(++last_lease_);
  leases_.emplace(id, Lease{region, std::move(ranges), deadline, std::move(on_end), 0, {}});
  expiries_.emplace(deadline, id);
  return id;
}

void RegionBook::end(LeaseId lease, LeaseEnd how) {
  std::lock_guard lock(mutex_);
  const auto at = leases_.find(lease);
  if (at == leases_.end() || at->second.ended) {
    if (how == LeaseEnd::released) ++unknown_;
    return;
  }
  end_locked(at, how);
}

void RegionBook::end_locked(Leases::iterator lease, LeaseEnd how) {
  lease->second.ended = how;
  if (how == LeaseEnd::released) ++released_;
  if (how == LeaseEnd::expired) ++expired_;
  if (how == LeaseEnd::revoked) ++revoked_;
  const auto [first, last] = expiries_.equal_range(lease->second.deadline);
  const auto mine =
      std::find_if(first, last, [&](const auto& e) { return e.second == lease->first; });
  if (mine != last) expiries_.erase(mine);
  settle_locked(lease);
}

void RegionBook::settle_locked(Leases::iterator lease) {
  if (!lease->second.ended || lease->second.readers > 0) return;
  const auto region = regions_.find(lease->second.region);
  if (region != regions_.end() && region->second.uses > 0) --region->second.uses;
  if (lease->second.on_end) {
    ended_callbacks_.push_back([callback = std::move(lease->second.on_end), id = lease->first,
                                how = *lease->second.ended] { callback(id, how); });
  }
  leases_.erase(lease);
}

Result<std::vector<ConstSegment>> RegionBook::start_reading(RegionId region, LeaseId lease,
                                                            std::span<const ByteRange> ranges,
                                                            TimePoint now) {
  std::lock_guard lock(mutex_);
  const auto at = regions_.find(region);
  if (at == regions_.end()) return no_region(region);
  const auto held = lease.value == 0 ? leases_.end() : leases_.find(lease);
  if (lease.value == 0) {
    if (!at->second.published)
      return make_error(Errc::not_found,
                        "region " + std::to_string(region.value) + " is not published");
  } else {
    if (held == leases_.end() || held->second.ended || held->second.region != region)
      return no_lease(lease);
    if (held->second.deadline <= now)
      return make_error(Errc::deadline_exceeded, "lease " + std::to_string(lease.value));
  }
  const MemoryBlock& memory = at->second.region.memory;
  std::vector<ConstSegment> segments;
  segments.reserve(ranges.size());
  for (const ByteRange& range : ranges) {
    if (range.bytes == 0 || !inside(range.offset, range.bytes, 0, memory.bytes))
      return outside(range, "the region of " + std::to_string(memory.bytes));
    if (held != leases_.end() && !offered(held->second.ranges, range.offset, range.bytes))
      return outside(range, "what was offered");
    segments.push_back(ConstSegment{memory.data + range.offset, range.bytes});
  }
  ++at->second.uses;
  if (held != leases_.end()) ++held->second.readers;
  return segments;
}

void RegionBook::finish_reading(RegionId region, LeaseId lease) {
  std::lock_guard lock(mutex_);
  const auto at = regions_.find(region);
  if (at != regions_.end() && at->second.uses > 0) --at->second.uses;
  const auto held = leases_.find(lease);
  if (held == leases_.end()) return;
  --held->second.readers;
  settle_locked(held);
}

Status RegionBook::check(RegionId region, LeaseId lease, std::span<const ByteRange> ranges,
                         TimePoint now) const {
  std::lock_guard lock(mutex_);
  const auto at = regions_.find(region);
  if (at == regions_.end()) return no_region(region);
  const auto held = leases_.find(lease);
  if (held == leases_.end() || held->second.ended || held->second.region != region)
    return no_lease(lease);
  if (held->second.deadline <= now)
    return make_error(Errc::deadline_exceeded, "lease " + std::to_string(lease.value));
  for (const ByteRange& range : ranges) {
    if (range.bytes == 0 || !inside(range.offset, range.bytes, 0, at->second.region.memory.bytes) ||
        !offered(held->second.ranges, range.offset, range.bytes))
      return outside(range, "what was offered");
  }
  return {};
}

void RegionBook::expire(TimePoint now) {
  std::lock_guard lock(mutex_);
  while (!expiries_.empty() && expiries_.begin()->first <= now)
    end_locked(leases_.find(expiries_.begin()->second), LeaseEnd::expired);
}

std::optional<TimePoint> RegionBook::next_expiry() const {
  std::lock_guard lock(mutex_);
  if (expiries_.empty()) return std::nullopt;
  return expiries_.begin()->first;
}

void RegionBook::end_all() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  while (!expiries_.empty())
    end_locked(leases_.find(expiries_.begin()->second), LeaseEnd::shutdown);
}

std::vector<std::function<void()>> RegionBook::take_ended() {
  std::lock_guard lock(mutex_);
  return std::exchange(ended_callbacks_, {});
}

void RegionBook::fill(TransportStats& stats) const {
  std::lock_guard lock(mutex_);
  stats.leases_live = leases_.size();
  stats.leases_granted = last_lease_;
  stats.leases_released = released_;
  stats.leases_expired = expired_;
  stats.leases_revoked = revoked_;
  stats.releases_unknown = unknown_;
}

}  // namespace cedar::transport
