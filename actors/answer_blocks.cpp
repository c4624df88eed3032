#include "actors/answer_blocks.h"

#include <cstring>
#include <utility>

#include "actors/offers.h"
#include "core/units.h"

namespace cedar::actors {
namespace {

constexpr size_t kSlots = 32;
/// A cache that takes longer does not get the block.
constexpr std::chrono::seconds kKeepTime{10};

}  // namespace

AnswerBlocks::AnswerBlocks(const DataPlane& plane, int64_t block_bytes,
                           std::function<void(size_t)> ended)
    : plane_(plane), block_bytes_(block_bytes), ended_(std::move(ended)) {}

Status AnswerBlocks::prepare() {
  if (region_) return {};
  const int64_t bytes = align_up(block_bytes_, Buffer::kAlignment);
  CEDAR_TRY(const transport::Region region,
            plane_.transport->allocate(static_cast<uint64_t>(bytes) * kSlots));
  region_ = std::make_shared<ExportRegion>(*plane_.transport, region);
  for (size_t slot = kSlots; slot > 0; --slot) free_.push_back(slot - 1);
  return {};
}

Result<Offer> AnswerBlocks::offer(std::span<const std::byte> block) {
  CEDAR_CHECK_OK(prepare());
  if (free_.empty()) return make_error(Errc::overloaded, "no slot for a block of an answer");
  const size_t slot = free_.back();
  const auto offset = slot * static_cast<uint64_t>(align_up(block_bytes_, Buffer::kAlignment));
  std::memcpy(region_->memory().data + offset, block.data(), block.size());
  transport::OfferRequest request;
  request.region = region_->id();
  request.ranges.push_back({offset, block.size(), {}});
  request.lease_deadline = transport::Clock::now() + kKeepTime;
  const auto on_end = [slot, region = region_, ended = ended_](LeaseId, transport::LeaseEnd) {
    ended(slot);
  };
  CEDAR_TRY(const auto descriptor, plane_.transport->offer(std::move(request), on_end));
  free_.pop_back();
  return make_offer(descriptor, plane_.endpoint);
}

}  // namespace cedar::actors
