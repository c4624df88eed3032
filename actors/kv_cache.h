#pragma once
// Keyed KV blocks in memory, with leases: what a lease names stays until it is released or its owner dies.

#include <caf/actor_addr.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <map>
#include <vector>

#include "actors/block_map.h"
#include "actors/messages.h"

namespace cedar::actors {

class KvCache final : public KvCacheActor::base {
 public:
  KvCache(caf::actor_config& config, int64_t capacity_bytes);

  behavior_type make_behavior() override;
  const char* name() const override { return "cedar.kv_cache"; }

 private:
  struct Lease {
    caf::actor_addr owner;
    std::vector<model::BlockKey> keys;
  };

  PrefixLease lookup(const LookupPrefix& message);
  void release(std::map<LeaseId, Lease>::iterator lease);

  BlockMap blocks_;
  std::map<LeaseId, Lease> leases_;
  uint64_t next_lease_ = 1;
};

}  // namespace cedar::actors
