#include "actors/rank_link.h"

#include <algorithm>
#include <utility>

#include "core/units.h"

namespace cedar::actors {
void RankLink::Slots::give_back(size_t slot) {
  {
    std::lock_guard lock(mutex);
    free.push_back(slot);
  }
  freed.notify_one();
  if (on_free) on_free();
}

Result<std::unique_ptr<RankLink>> RankLink::create(const DataPlane& plane, int64_t slot_bytes,
                                                   size_t slots, std::function<void()> on_free) {
  const int64_t aligned = align_up(slot_bytes, Buffer::kAlignment);
  std::unique_ptr<RankLink> link(new RankLink(plane, aligned));
  CEDAR_TRY(link->buffer_, link->memory_.allocate(aligned * static_cast<int64_t>(slots)));
  link->count_ = slots;
  link->slots_->on_free = std::move(on_free);
  for (size_t slot = slots; slot > 0; --slot) link->slots_->free.push_back(slot - 1);
  return link;
}

std::optional<size_t> RankLink::take() { return take_until({}); }

std::optional<size_t> RankLink::take_until(transport::TimePoint deadline) {
  std::unique_lock lock(slots_->mutex);
  if (!slots_->freed.wait_until(lock, deadline, [this] { return !slots_->free.empty(); }))
    return {};
  const size_t slot = slots_->free.back();
  slots_->free.pop_back();
  return slot;
}

std::span<std::byte> RankLink::memory(size_t slot) {
  return {buffer_.data() + static_cast<int64_t>(slot) * slot_bytes_,
          static_cast<size_t>(slot_bytes_)};
}

void RankLink::give_back(size_t slot) { slots_->give_back(slot); }

size_t RankLink::slots_in_use() const {
  std::lock_guard lock(slots_->mutex);
  return count_ - slots_->free.size();
}

void RankLink::send(size_t slot, int64_t bytes, const DataEndpoint& next,
                    transport::CallMethod method, transport::TimePoint deadline,
                    const Request& request, transport::CallCallback callback) {
  // A step may have nothing for the layers behind, but an offer has at least a byte.
  const auto offered_bytes = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  const auto place = memory_.locate(memory(slot).first(offered_bytes));
  if (!place) {
    give_back(slot);
    return callback(place.error());
  }
  transport::OfferRequest offer;
  offer.region = place->region->id();
  offer.ranges.push_back({place->offset, offered_bytes, {}});
  offer.lease_deadline = deadline;
  // The region lives as long as the lease, even without this object.
  const auto offered = plane_.transport->offer(
      std::move(offer), [slots = slots_, slot, region = place->region](
                            LeaseId, transport::LeaseEnd) { slots->give_back(slot); });
  if (!offered) {
    give_back(slot);
    return callback(offered.error());
  }
  plane_.calls->call(call_target(next), method, request(transport::serialise(*offered)), deadline,
                     [callback = std::move(callback), transport = plane_.transport,
                      lease = offered->lease](Result<std::vector<std::byte>> answer) {
                       // Who failed may not have fetched them.
                       if (!answer) transport->revoke(lease);
                       callback(std::move(answer));
                     });
}

}  // namespace cedar::actors
