#pragma once
// The states of sessions in a cache's memory: a WindowPool and the region that it hands out. States are fetched straight to
// their places, and offered from there. Never on disk, gone with the process. Belongs to one actor.

#include <caf/actor_addr.hpp>

#include <map>
#include <memory>
#include <optional>
#include <span>

#include "actors/cache_options.h"
#include "actors/export_memory.h"
#include "actors/messages.h"
#include "actors/offer_puller.h"
#include "actors/window_pool.h"

namespace cedar::actors {

class WindowCache {
 public:
  /// Takes its memory: what the options say, at most a tenth of the machine's. Errors: the transport's; then it keeps
  /// nothing.
  Status start(transport::Transport& transport, const CacheOptions& options);
  void stop();

  /// Fetches a state, or takes it over in place, for `session`, whose last found state it replaces. `id` names the fetch.
  /// Ends the offer's lease in any case. Errors: of the offer.
  Status store(const StoreWindows& message, const caf::actor_addr& session, HandoffId id,
               OfferPuller& puller);
  /// What became of a fetch; others' are ignored.
  void arrived(HandoffId id);
  void failed(HandoffId id);

  struct Found {
    model::BlockKey key;  // pinned once, for the caller to unpin
    int64_t tokens = 0;
    transport::ByteRange range;  // of region()
  };
  /// The state that covers most of a prefix.
  std::optional<Found> find(std::span<const model::BlockKey> prefix,
                            const caf::actor_addr& session);
  void unpin(const model::BlockKey& key) { pool_.unpin(key); }
  const std::shared_ptr<ExportRegion>& region() const { return region_; }

  void expire();
  void count(CacheUsage& usage) const;

 private:
  struct Arriving {
    model::BlockKey key;
    caf::actor_addr session;
  };
  void finish(const Arriving& state);

  transport::Transport* transport_ = nullptr;
  WindowPool pool_{0, std::chrono::seconds(0)};
  std::shared_ptr<ExportRegion> region_;
  std::map<HandoffId, Arriving> arriving_;
  std::map<caf::actor_addr, model::BlockKey> used_;  // by sessions that will keep a later one
  int64_t lookups_ = 0;
  int64_t hits_ = 0;
};

}  // namespace cedar::actors
