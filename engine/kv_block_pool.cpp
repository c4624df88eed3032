#include "engine/kv_block_pool.h"

#include <string>

namespace cedar::engine {

Result<KvBlockPool> KvBlockPool::create(Device device, int64_t blocks, int64_t block_bytes,
                                        HostMemorySource* memory) {
  CEDAR_ASSERT(memory == nullptr || device.kind == DeviceKind::cpu, to_string(device));
  KvBlockPool pool;
  // Zeroed: a row that was never written must not decode to NaN where a kernel reads whole tiles.
  const int64_t bytes = blocks * block_bytes;
  CEDAR_TRY(pool.pages_,
            memory != nullptr ? memory->allocate(bytes) : Buffer::zeroed(device, bytes));
  pool.block_bytes_ = block_bytes;
  pool.holders_.assign(static_cast<size_t>(blocks), 0);
  pool.free_.reserve(static_cast<size_t>(blocks));
  for (int64_t i = blocks - 1; i >= 0; --i) pool.free_.emplace_back(static_cast<int32_t>(i));
  return pool;
}

Result<std::vector<BlockId>> KvBlockPool::allocate(int64_t count) {
  if (count > free()) {
    return make_error(Errc::overloaded, "KV pool: " + std::to_string(count) + " blocks needed, " +
                                            std::to_string(free()) + " of " +
                                            std::to_string(total()) + " free");
  }
  std::vector<BlockId> blocks;
  blocks.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    blocks.push_back(free_.back());
    free_.pop_back();
    holders_[static_cast<size_t>(blocks.back().value)] = 1;
  }
  return blocks;
}

void KvBlockPool::retain(BlockId block) {
  int32_t& holders = holders_[static_cast<size_t>(block.value)];
  CEDAR_ASSERT(holders > 0, std::to_string(block.value));
  ++holders;
}

void KvBlockPool::release(BlockId block) {
  int32_t& holders = holders_[static_cast<size_t>(block.value)];
  CEDAR_ASSERT(holders > 0, std::to_string(block.value));
  if (--holders == 0) free_.push_back(block);
}

}  // namespace cedar::engine
