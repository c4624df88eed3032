#pragma once
// Memory that other processes may read: an encoder's KV pages and the states it hands over. Engines get it as ordinary
// buffers; offers find it again by address.

#include <map>
#include <memory>
#include <span>

#include "core/host_memory.h"
#include "transport/transport.h"

namespace cedar::actors {

/// Registered until the last holder is gone: the buffer, and every lease on its bytes.
class ExportRegion {
 public:
  ExportRegion(transport::Transport& transport, const transport::Region& region)
      : transport_(transport), region_(region) {}
  ~ExportRegion();
  ExportRegion(const ExportRegion&) = delete;
  ExportRegion& operator=(const ExportRegion&) = delete;

  transport::RegionId id() const { return region_.id; }
  const transport::MemoryBlock& memory() const { return region_.memory; }

 private:
  transport::Transport& transport_;
  transport::Region region_;
};

/// One thread at a time; buffers may be dropped on any thread.
class ExportMemory final : public HostMemorySource {
 public:
  /// `transport` outlives this and all buffers.
  explicit ExportMemory(transport::Transport& transport) : transport_(transport) {}

  Result<Buffer> allocate(int64_t bytes) override;

  struct Place {
    std::shared_ptr<ExportRegion> region;
    uint64_t offset = 0;
  };
  /// Errors: internal, when the bytes are in no live buffer of this source.
  Result<Place> locate(std::span<const std::byte> bytes) const;

 private:
  transport::Transport& transport_;
  std::map<const std::byte*, std::weak_ptr<ExportRegion>> regions_;  // by first byte
};

}  // namespace cedar::actors
