#include "actors/kv_cache.h"

#include <caf/send.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

#include "actors/errors.h"
#include "actors/offers.h"
#include "core/log.h"
#include "core/units.h"

namespace cedar::actors {
namespace {

/// Offers that wait to be fetched; more of them are let go.
constexpr size_t kMostFetches = 256;
constexpr std::chrono::milliseconds kFetchTimeout{10000};
/// What a lookup may wait for its reads: less than the session waits for the answer, for any number of them.
constexpr std::chrono::milliseconds kReadTimeout{200};
constexpr std::chrono::milliseconds kReadTimeoutPerBlock{1};
/// Blocks that a lookup finds in memory only, to be brought to the disk again: copies in the way of the answer.
constexpr int64_t kMostWrittenAgain = 64;
constexpr std::chrono::seconds kTickInterval{1};

void publish_usage(const CacheUsage& usage, LoadBoard& board) {
  board.cache_blocks = usage.blocks;
  board.cache_bytes = usage.bytes;
  board.cache_capacity_bytes = usage.capacity_bytes;
  board.cache_pinned_blocks = usage.pinned_blocks;
  board.cache_leases = usage.leases;
  board.cache_lookups = usage.lookups;
  board.cache_hit_blocks = usage.hit_blocks;
  board.cache_stored_blocks = usage.stored_blocks;
  board.cache_dropped_blocks = usage.dropped_blocks;
  board.cache_evicted_blocks = usage.evicted_blocks;
  board.cache_disk_blocks = usage.disk_blocks;
  board.cache_disk_bytes = usage.disk_bytes;
  board.cache_disk_capacity_bytes = usage.disk_capacity_bytes;
  board.cache_disk_hit_blocks = usage.disk_hit_blocks;
  board.cache_disk_written_blocks = usage.disk_written_blocks;
  board.cache_disk_dropped_blocks = usage.disk_dropped_blocks;
  board.cache_disk_errors = usage.disk_errors;
  board.cache_windows = usage.windows;
  board.cache_window_bytes = usage.window_bytes;
  board.cache_window_capacity_bytes = usage.window_capacity_bytes;
  board.cache_window_lookups = usage.window_lookups;
  board.cache_window_hits = usage.window_hits;
  board.cache_windows_expired = usage.windows_expired;
  board.cache_windows_evicted = usage.windows_evicted;
}

}  // namespace

KvCache::KvCache(caf::actor_config& config, KvCacheSetup setup)
    : typed_event_based_actor(config),
      setup_(std::move(setup)),
      disk_(setup_.options, setup_.block_bytes),
      lookups_(tier_, disk_, [this](uint64_t number, const model::BlockKey& key, int64_t slot) {
        read(number, key, slot);
      }) {}

KvCache::behavior_type KvCache::make_behavior() {
  if (const Status started = start(); !started) {
    log::error("cache", "cannot start", {{"error", started.error().message()}});
    quit(to_caf(started.error()));
  }
  publish();
  set_down_handler([this](caf::down_msg& down) {
    for (auto& [id, lease] : leases_) {
      if (lease.owner == down.source) end(lease);
    }
    std::vector<uint64_t> open;
    for (const auto& [id, asked] : asked_) {
      if (asked.owner == down.source) open.push_back(id);
    }
    for (const uint64_t id : open) drop(id);
  });
  return {
      [this](const LookupPrefix& message) { return lookup(message); },
      [this](const StoreBlocks& message) { store(message); },
      [this](const StoreWindows& message) { store(message); },
      [this](const ReleaseLease& message) {
        const auto lease = leases_.find(message.lease);
        if (lease != leases_.end()) end(lease->second);
      },
      [this](UsageAtom) {
        publish();
        return usage_;
      },
      [this](const CachePullEnded& message) {
        if (puller_) puller_->pulled(message.pull, outcome(message.error));
        publish();
      },
      [this](const CacheOwnerReached& message) {
        if (puller_) puller_->connected(message.owner, outcome(message.error));
      },
      [this](const CacheOfferEnded& message) { offer_ended(message.lease); },
      [this](const CacheReadEnded& message) {
        const Status status = outcome(message.error);
        if (!status) {
          log::warn("cache", "cannot read from its disk", {{"error", status.error().message()}});
        }
        for (const uint64_t id : lookups_.read_ended(message.read, status)) answer(id);
      },
      [this](const CacheLookupDue& message) {
        if (asked_.count(message.lookup) != 0) answer(message.lookup);
      },
      [this](const CacheTick&) {
        delayed_send(this, kTickInterval, CacheTick{});
        if (memory_) disk_.open();
        windows_.expire();
        publish();
      },
  };
}

Status KvCache::start() {
  slot_bytes_ = align_up(setup_.block_bytes, Buffer::kAlignment);
  const int64_t slots = slot_bytes_ > 0 ? setup_.options.bytes / slot_bytes_ : 0;
  if (slots == 0) {
    if (!setup_.options.directory.empty()) {
      log::warn("cache", "has no memory, and therefore no disk either",
                {{"directory", setup_.options.directory}});
    }
    return {};
  }
  transport::Transport& transport = *setup_.plane.transport;
  CEDAR_TRY(const transport::Region region,
            transport.allocate(static_cast<uint64_t>(slots * slot_bytes_)));
  memory_ = std::make_shared<ExportRegion>(transport, region);
  tier_ = CacheTier(slots);
  OfferPullerOptions options;
  options.metrics = setup_.metrics;
  options.block_bytes = setup_.block_bytes;
  options.block_slots = 64;
  OfferPuller::Handlers handlers;
  handlers.pulled = [cache = address()](uint64_t pull, const Status& status) {
    tell(cache, CachePullEnded{pull, outcome(status)});
  };
  handlers.connected = [cache = address()](const DataEndpoint& owner, const Status& status) {
    tell(cache, CacheOwnerReached{owner, outcome(status)});
  };
  OfferPuller::Receiver& receiver = *this;
  puller_.emplace(transport, options, receiver, std::move(handlers));
  if (const Status windows = windows_.start(transport, setup_.options); !windows) {
    log::warn("cache", "keeps no windows", {{"error", windows.error().message()}});
  }
  disk_.open();
  delayed_send(this, kTickInterval, CacheTick{});
  return {};
}

void KvCache::on_exit() {
  for (auto& [id, asked] : asked_) asked.promise.deliver(PrefixLease{});
  asked_.clear();
  disk_.close();
  for (auto& [id, lease] : leases_) {
    for (const LeaseId offer : lease.offers) setup_.plane.transport->revoke(offer);
  }
  leases_.clear();
  stores_.clear();
  puller_.reset();
  windows_.stop();
  memory_.reset();
}

// --- readers ---------------------------------------------------------------------------------------------

KvCache::PrefixPromise KvCache::lookup(const LookupPrefix& message) {
  ++usage_.lookups;
  Asked asked;
  asked.owner = caf::actor_cast<caf::actor_addr>(current_sender());
  asked.promise = make_response_promise<PrefixPromise>();  // nobody is the sender from here on
  asked.deadline = transport::Clock::now() + message.remaining;
  const PrefixPromise promise = asked.promise;
  const uint64_t id = lookups_.begin(message.keys);
  watch(asked.owner);
  asked_.emplace(id, std::move(asked));
  const int64_t missing = lookups_.missing(id);
  if (missing == 0) {
    answer(id);
  } else {
    delayed_send(this, kReadTimeout + missing * kReadTimeoutPerBlock, CacheLookupDue{id});
  }
  return promise;
}

void KvCache::answer(uint64_t id) {
  const auto at = asked_.find(id);
  if (at == asked_.end()) return;
  Asked asked = std::move(at->second);
  asked_.erase(at);
  asked.promise.deliver(lend(lookups_.take(id), asked));
  unwatch(asked.owner);
  publish();
}

void KvCache::drop(uint64_t id) {
  for (const model::BlockKey& key : lookups_.take(id).keys) tier_.unpin(key);
  const auto at = asked_.find(id);
  at->second.promise.deliver(PrefixLease{});
  unwatch(at->second.owner);
  asked_.erase(at);
}

void KvCache::read(uint64_t number, const model::BlockKey& key, int64_t slot) {
  // The region lives as long as someone may write to it, even if this actor does not.
  disk_.read(key, bytes_of(slot),
             [cache = address(), number, region = memory_](const Status& status) {
               tell(cache, CacheReadEnded{number, outcome(status)});
             });
}

void KvCache::write_again(const PrefixLookups::Found& found) {
  if (!disk_.is_open()) return;
  int64_t left = kMostWrittenAgain;
  for (size_t i = 0; i < found.keys.size() && left > 0; ++i) {
    if (disk_.has(found.keys[i])) continue;
    disk_.write(found.keys[i], bytes_of(found.slots[i]));
    --left;
  }
}

PrefixLease KvCache::lend(PrefixLookups::Found found, const Asked& asked) {
  if (found.keys.empty()) return {};
  write_again(found);
  const LeaseId id{++last_id_};
  Lease& lease = leases_[id];
  lease.keys = std::move(found.keys);
  lease.owner = asked.owner;
  watch(lease.owner);
  PrefixLease reply;
  reply.lease = id;
  reply.blocks = static_cast<int64_t>(found.slots.size());
  reply.disk_blocks = found.from_disk;
  std::vector<transport::ByteRange> ranges;
  for (const int64_t slot : found.slots) {
    ranges.push_back(
        {static_cast<uint64_t>(slot * slot_bytes_), static_cast<uint64_t>(setup_.block_bytes), {}});
  }
  Status status;
  const auto lend = [&](const auto& region, std::vector<transport::ByteRange> bytes, Offer& part) {
    auto offered = offer(region, std::move(bytes), id, asked.deadline, lease.offers);
    if (offered) part = std::move(*offered);
    else status = offered.error();
  };
  lend(memory_, ranges, reply.for_encoder);
  lend(memory_, ranges, reply.for_decoder);
  if (const auto windows = windows_.find(lease.keys, asked.owner); windows) {
    lease.window = windows->key;
    reply.windows_at = windows->tokens;
    lend(windows_.region(), {windows->range}, reply.windows);
  }
  lease.open = lease.offers.size();
  if (!status) {
    log::warn("cache", "cannot offer what it has", {{"error", status.error().message()}});
    end(lease);
    if (lease.open == 0) offer_ended(id);
    return {};
  }
  usage_.hit_blocks += reply.blocks;
  usage_.disk_hit_blocks += reply.disk_blocks;
  return reply;
}

Result<Offer> KvCache::offer(const std::shared_ptr<ExportRegion>& region,
                             std::vector<transport::ByteRange> ranges, LeaseId lease,
                             transport::TimePoint deadline, std::vector<LeaseId>& offers) {
  transport::OfferRequest request;
  request.region = region->id();
  request.ranges = std::move(ranges);
  request.lease_deadline = deadline;
  // The region lives as long as the lease, even if this actor does not.
  const auto on_end = [cache = address(), lease, region](LeaseId, transport::LeaseEnd) {
    tell(cache, CacheOfferEnded{lease});
  };
  CEDAR_TRY(const auto descriptor, setup_.plane.transport->offer(std::move(request), on_end));
  offers.push_back(descriptor.lease);
  return make_offer(descriptor, setup_.plane.endpoint);
}

void KvCache::end(Lease& lease) {
  // Reads under way end first; then the offers come back.
  for (const LeaseId offer : lease.offers) setup_.plane.transport->revoke(offer);
}

void KvCache::offer_ended(LeaseId id) {
  const auto at = leases_.find(id);
  if (at == leases_.end()) return;
  if (at->second.open > 0 && --at->second.open > 0) return;
  for (const model::BlockKey& key : at->second.keys) tier_.unpin(key);
  if (at->second.window) windows_.unpin(*at->second.window);
  unwatch(at->second.owner);
  leases_.erase(at);
  publish();
}

void KvCache::watch(const caf::actor_addr& owner) {
  if (owner && owners_[owner]++ == 0) monitor(owner);
}

void KvCache::unwatch(const caf::actor_addr& owner) {
  const auto at = owners_.find(owner);
  if (at == owners_.end() || --at->second > 0) return;
  demonitor(owner);
  owners_.erase(at);
}

// --- writers ---------------------------------------------------------------------------------------------

void KvCache::store(const StoreBlocks& message) {
  if (const Status status = fetch(message); !status) {
    log::warn("cache", "cannot take blocks over", {{"error", status.error().message()}});
    usage_.dropped_blocks += static_cast<int64_t>(message.chain.size());
  }
  publish();
}

void KvCache::store(const StoreWindows& message) {
  if (!puller_) return;
  const HandoffId id{++last_id_};
  const auto session = caf::actor_cast<caf::actor_addr>(current_sender());
  if (const Status status = windows_.store(message, session, id, *puller_); !status) {
    log::warn("cache", "cannot take windows over", {{"error", status.error().message()}});
  }
  publish();
}

Status KvCache::fetch(const StoreBlocks& message) {
  CEDAR_TRY(auto descriptor, descriptor_of(message.blocks));
  transport::Transport& transport = *setup_.plane.transport;
  const size_t count =
      std::min(descriptor.ranges.size(), std::max<size_t>(message.chain.size(), 1) - 1);
  const auto ranges = std::exchange(descriptor.ranges, {});
  Fetch fetch;
  for (size_t i = 0; i < count && puller_; ++i) {
    if (tier_.has(message.chain[i + 1])) continue;
    if (static_cast<int64_t>(ranges[i].bytes) != setup_.block_bytes) {
      transport.release(descriptor.owner, descriptor.lease);
      return make_error(Errc::invalid_argument, "KV block of " + std::to_string(ranges[i].bytes) +
                                                    " bytes, expected " +
                                                    std::to_string(setup_.block_bytes));
    }
    fetch.blocks.push_back(static_cast<int64_t>(i));
    descriptor.ranges.push_back(ranges[i]);
  }
  if (fetch.blocks.empty() || puller_->waiting() >= kMostFetches) {
    usage_.dropped_blocks += static_cast<int64_t>(fetch.blocks.size());
    transport.release(descriptor.owner, descriptor.lease);
    return {};
  }
  const Store store{message.first, message.chain};
  if (descriptor.owner == transport.identity()) {
    {
      CEDAR_TRY(const auto bytes, transport.read_in_place(descriptor));
      for (size_t i = 0; i < fetch.blocks.size(); ++i) keep(store, fetch.blocks[i], bytes[i]);
    }
    transport.release(descriptor.owner, descriptor.lease);
    return {};
  }
  fetch.attempt = {HandoffId{++last_id_}, 1};
  fetch.owner = message.blocks.owner;
  fetch.deadline = transport::Clock::now() + kFetchTimeout;
  fetch.source = std::move(descriptor);
  // Of a fetch that has ended nothing tells; the oldest are those.
  while (stores_.size() > 2 * kMostFetches) stores_.erase(stores_.begin());
  stores_.emplace(fetch.attempt.handoff, store);
  puller_->add(std::move(fetch));
  return {};
}

void KvCache::keep(const Store& store, int64_t block, std::span<const std::byte> bytes) {
  const auto at = static_cast<size_t>(block);
  disk_.write(store.chain[at + 1], bytes);
  const auto slot = tier_.store(store.chain[at + 1], store.chain[at], store.first + block);
  if (!slot) {
    ++usage_.dropped_blocks;
    return;
  }
  std::memcpy(bytes_of(*slot).data(), bytes.data(), bytes.size());
  ++usage_.stored_blocks;
}

void KvCache::block_arrived(const Attempt& attempt, int64_t index,
                            std::span<const std::byte> bytes) {
  const auto store = stores_.find(attempt.handoff);
  if (store != stores_.end()) keep(store->second, index, bytes);
}

void KvCache::state_arrived(const Attempt& attempt, std::span<const std::byte>) {
  windows_.arrived(attempt.handoff);
}

void KvCache::fetch_failed(const Attempt& attempt, const Error& error) {
  log::info("cache", "a stage took its offer back", {{"error", error.message()}});
  stores_.erase(attempt.handoff);
  windows_.failed(attempt.handoff);
}

std::span<std::byte> KvCache::bytes_of(int64_t slot) const {
  return {memory_->memory().data + slot * slot_bytes_, static_cast<size_t>(setup_.block_bytes)};
}

void KvCache::publish() {
  usage_.blocks = tier_.blocks();
  usage_.bytes = tier_.blocks() * setup_.block_bytes;
  usage_.capacity_bytes = tier_.slots() * slot_bytes_;
  usage_.pinned_blocks = tier_.pinned_blocks();
  usage_.leases = static_cast<int64_t>(leases_.size());
  usage_.evicted_blocks = tier_.evictions();
  disk_.count(usage_);
  windows_.count(usage_);
  if (setup_.board) publish_usage(usage_, *setup_.board);
}

}  // namespace cedar::actors
