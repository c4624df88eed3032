#pragma once
// Pages of KV blocks on one device, reference counted so that sequences can share a prefix.

#include <cstdint>
#include <vector>

#include "core/host_memory.h"
#include "core/ids.h"
#include "core/result.h"

namespace cedar::engine {

/// One thread at a time.
class KvBlockPool {
 public:
  /// The pages come from `memory` if there is one; then the device is the CPU.
  static Result<KvBlockPool> create(Device device, int64_t blocks, int64_t block_bytes,
                                    HostMemorySource* memory = nullptr);

  /// All or nothing. Errors: overloaded, naming need and free.
  Result<std::vector<BlockId>> allocate(int64_t count);
  void retain(BlockId block);
  /// Frees the page when the last holder lets go. REQUIRES: the block is held.
  void release(BlockId block);

  std::byte* data(BlockId block) { return pages_.data() + block.value * block_bytes_; }
  const std::byte* data(BlockId block) const { return pages_.data() + block.value * block_bytes_; }
  uint8_t* base() { return pages_.as<uint8_t>(); }
  int64_t block_bytes() const { return block_bytes_; }
  int64_t total() const { return static_cast<int64_t>(holders_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }

 private:
  KvBlockPool() = default;
  Buffer pages_;
  int64_t block_bytes_ = 0;
  std::vector<int32_t> holders_;  // per page
  std::vector<BlockId> free_;     // a stack: the page used last is the one most likely in cache
};

}  // namespace cedar::engine
