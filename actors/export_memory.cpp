#include "actors/export_memory.h"

#include <string>

#include "core/log.h"

namespace cedar::actors {

ExportRegion::~ExportRegion() {
  // After the transport's end nothing is left to do there.
  const Status status = transport_.unregister(region_.id);
  if (!status && status.error().code == Errc::overloaded) {
    log::error("encoder", "exported memory is in use and stays", {{"region", region_.id.value}});
  }
}

Result<Buffer> ExportMemory::allocate(int64_t bytes) {
  CEDAR_TRY(const transport::Region region, transport_.allocate(static_cast<uint64_t>(bytes)));
  auto owner = std::make_shared<ExportRegion>(transport_, region);
  regions_[region.memory.data] = owner;
  return Buffer::adopt(region.memory.data, bytes, std::move(owner));
}

Result<ExportMemory::Place> ExportMemory::locate(std::span<const std::byte> bytes) const {
  auto after = regions_.upper_bound(bytes.data());
  if (after != regions_.begin()) {
    const auto region = std::prev(after)->second.lock();
    if (region) {
      const auto offset = static_cast<uint64_t>(bytes.data() - region->memory().data);
      if (offset + bytes.size() <= region->memory().bytes) return Place{region, offset};
    }
  }
  return make_error(Errc::internal,
                    std::to_string(bytes.size()) + " bytes to offer are not in exported memory");
}

}  // namespace cedar::actors
