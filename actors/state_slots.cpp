#include "actors/state_slots.h"

#include <string>

#include "core/units.h"

namespace cedar::actors {

Status StateSlots::allocate(ExportMemory& memory, int64_t bytes, size_t count) {
  const int64_t slot_bytes = align_up(bytes, Buffer::kAlignment);
  CEDAR_TRY(memory_, memory.allocate(static_cast<int64_t>(count) * slot_bytes));
  slot_bytes_ = slot_bytes;
  for (size_t slot = count; slot > 0; --slot) free_.push_back(slot - 1);
  return {};
}

Result<StateSlots::Kept> StateSlots::keep(const engine::Handoff& state) {
  const int64_t bytes = engine::serialised_bytes(state);
  if (bytes > slot_bytes_) {
    return make_error(Errc::internal, "a state of " + std::to_string(bytes) +
                                          " bytes, a slot has " + std::to_string(slot_bytes_));
  }
  const size_t slot = free_.back();
  free_.pop_back();
  const std::span<std::byte> target(memory_.data() + static_cast<int64_t>(slot) * slot_bytes_,
                                    static_cast<size_t>(bytes));
  engine::serialise(state, target);
  return Kept{slot, target};
}

void StateSlots::clear() {
  memory_ = Buffer();
  free_.clear();
  slot_bytes_ = 0;
}

}  // namespace cedar::actors
