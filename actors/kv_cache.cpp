#include "actors/kv_cache.h"

#include <utility>

namespace cedar::actors {

KvCache::KvCache(caf::actor_config& config, int64_t capacity_bytes)
    : typed_event_based_actor(config), blocks_(capacity_bytes) {}

KvCache::behavior_type KvCache::make_behavior() {
  set_down_handler([this](caf::down_msg& down) {
    for (auto lease = leases_.begin(); lease != leases_.end();) {
      const auto next = std::next(lease);
      if (lease->second.owner == down.source) release(lease);
      lease = next;
    }
  });
  return {
      [this](const LookupPrefix& message) { return lookup(message); },
      [this](const StoreBlock& message) { blocks_.store(message.key, message.bytes); },
      [this](const ReleaseLease& message) {
        const auto lease = leases_.find(message.lease);
        if (lease != leases_.end()) release(lease);
      },
      [this](UsageAtom) {
        return CacheUsage{blocks_.blocks(), blocks_.bytes(), blocks_.capacity_bytes(),
                          blocks_.pinned_blocks(), static_cast<int64_t>(leases_.size())};
      },
  };
}

PrefixLease KvCache::lookup(const LookupPrefix& message) {
  PrefixLease reply{LeaseId{next_lease_++}, blocks_.pin_prefix(message.keys)};
  const auto owner = caf::actor_cast<caf::actor_addr>(current_sender());
  const auto count = static_cast<std::ptrdiff_t>(reply.blocks.size());
  leases_[reply.lease] = {owner, {message.keys.begin(), message.keys.begin() + count}};
  if (owner) monitor(owner);
  return reply;
}

void KvCache::release(std::map<LeaseId, Lease>::iterator lease) {
  for (const model::BlockKey& key : lease->second.keys) blocks_.unpin(key);
  if (lease->second.owner) demonitor(lease->second.owner);
  leases_.erase(lease);
}

}  // namespace cedar::actors
