#pragma once
// KV blocks of finished prefixes, for requests that begin alike: in memory that other processes fetch from, and on a disk
// behind it, found by chained block keys. What stages offer is fetched behind their backs (write-behind, best effort) and
// written to the disk at once; what a lookup finds is offered in memory and stays until both of its readers are done, its
// lease is released, or its owner dies. A lookup waits for its reads of the disk, within bounds, and takes what is there.
//
// Beside the blocks, in memory of their own, the windows of sessions between turns: a lookup offers those that cover most of
// what it found.

#include <caf/actor_addr.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/cache_disk.h"
#include "actors/cache_options.h"
#include "actors/cache_tier.h"
#include "actors/data_plane.h"
#include "actors/load_board.h"
#include "actors/messages.h"
#include "actors/offer_puller.h"
#include "actors/prefix_lookups.h"
#include "actors/window_cache.h"
#include "monitoring/metrics.h"

namespace cedar::actors {

struct KvCacheSetup {
  CacheOptions options;
  int64_t block_bytes = 0;
  DataPlane plane;
  std::shared_ptr<LoadBoard> board;
  std::shared_ptr<monitoring::Metrics> metrics = monitoring::no_metrics();
};

/// From the cache's own data plane. `error` has the code ok when all went well.
struct CachePullEnded {
  uint64_t pull = 0;
  Error error;
};
struct CacheOwnerReached {
  DataEndpoint owner;
  Error error;
};
/// Nobody reads under one of a lease's offers any more.
struct CacheOfferEnded {
  LeaseId lease;
};
/// From the disk.
struct CacheReadEnded {
  uint64_t read = 0;
  Error error;
};
/// A lookup has waited long enough.
struct CacheLookupDue {
  uint64_t lookup = 0;
};
struct CacheTick {};

class KvCache final
    : public KvCacheActor::extend<caf::reacts_to<CachePullEnded>, caf::reacts_to<CacheOwnerReached>,
                                  caf::reacts_to<CacheOfferEnded>, caf::reacts_to<CacheReadEnded>,
                                  caf::reacts_to<CacheLookupDue>, caf::reacts_to<CacheTick>>::base,
      private OfferPuller::Receiver {
 public:
  /// The actor dies with the error when its memory cannot be had.
  KvCache(caf::actor_config& config, KvCacheSetup setup);

  behavior_type make_behavior() override;
  void on_exit() override;
  const char* name() const override { return "cedar.kv_cache"; }

 private:
  using PrefixPromise = caf::typed_response_promise<PrefixLease>;
  /// A lookup that is not answered yet.
  struct Asked {
    PrefixPromise promise;
    caf::actor_addr owner;
    transport::TimePoint deadline;  // of the lease
  };
  struct Lease {
    caf::actor_addr owner;
    std::vector<model::BlockKey> keys;
    std::optional<model::BlockKey> window;
    std::vector<LeaseId> offers;  // of the transport
    size_t open = 0;              // of them
  };
  /// Blocks on their way here.
  struct Store {
    int64_t first = 0;
    std::vector<model::BlockKey> chain;
  };

  Status start();
  PrefixPromise lookup(const LookupPrefix& message);
  /// Answers with what is here by now.
  void answer(uint64_t lookup);
  void drop(uint64_t lookup);
  PrefixLease lend(PrefixLookups::Found found, const Asked& asked);
  void read(uint64_t number, const model::BlockKey& key, int64_t slot);
  void write_again(const PrefixLookups::Found& found);
  Result<Offer> offer(const std::shared_ptr<ExportRegion>& region,
                      std::vector<transport::ByteRange> ranges, LeaseId lease,
                      transport::TimePoint deadline, std::vector<LeaseId>& offers);
  void offer_ended(LeaseId lease);
  void end(Lease& lease);
  void watch(const caf::actor_addr& owner);
  void unwatch(const caf::actor_addr& owner);
  void store(const StoreBlocks& message);
  void store(const StoreWindows& message);
  Status fetch(const StoreBlocks& message);
  void keep(const Store& store, int64_t block, std::span<const std::byte> bytes);
  std::span<std::byte> bytes_of(int64_t slot) const;
  void publish();

  // What was fetched.
  void block_arrived(const Attempt& attempt, int64_t index,
                     std::span<const std::byte> bytes) override;
  void state_arrived(const Attempt& attempt, std::span<const std::byte> bytes) override;
  void fetch_failed(const Attempt& attempt, const Error& error) override;

  KvCacheSetup setup_;
  int64_t slot_bytes_ = 0;
  std::shared_ptr<ExportRegion> memory_;  // null: nothing is kept
  CacheTier tier_{0};
  CacheDisk disk_;
  WindowCache windows_;
  PrefixLookups lookups_;
  std::optional<OfferPuller> puller_;
  std::map<uint64_t, Asked> asked_;  // by number of the lookup
  std::map<LeaseId, Lease> leases_;
  std::map<caf::actor_addr, size_t> owners_;  // leases and open lookups of each
  std::map<HandoffId, Store> stores_;
  uint64_t last_id_ = 0;
  CacheUsage usage_;
};

}  // namespace cedar::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::CachePullEnded)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::CacheOwnerReached)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::CacheOfferEnded)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::CacheReadEnded)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::CacheLookupDue)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::CacheTick)
