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

}  // namespace

KvCache::KvCache(caf::actor_config& config, KvCacheSetup setup)
    : typed_event_based_actor(config), setup_(std::move(setup)) {}

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
  });
  return {
      [this](const LookupPrefix& message) {
        PrefixLease reply = lookup(message);
        publish();
        return reply;
      },
      [this](const StoreBlocks& message) { store(message); },
      [this](const StoreWindows& message) { refuse(message.windows); },
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
  };
}

Status KvCache::start() {
  slot_bytes_ = align_up(setup_.block_bytes, Buffer::kAlignment);
  const int64_t slots = slot_bytes_ > 0 ? setup_.capacity_bytes / slot_bytes_ : 0;
  if (slots == 0) return {};
  transport::Transport& transport = *setup_.plane.transport;
  CEDAR_TRY(const transport::Region region,
            transport.allocate(static_cast<uint64_t>(slots * slot_bytes_)));
  memory_ = std::make_shared<ExportRegion>(transport, region);
  tier_ = CacheTier(slots);
  OfferPullerOptions options;
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
  return {};
}

void KvCache::on_exit() {
  for (auto& [id, lease] : leases_) {
    for (const LeaseId offer : lease.offers) setup_.plane.transport->revoke(offer);
  }
  leases_.clear();
  stores_.clear();
  puller_.reset();
  memory_.reset();
}

// --- readers ---------------------------------------------------------------------------------------------

PrefixLease KvCache::lookup(const LookupPrefix& message) {
  ++usage_.lookups;
  const std::vector<int64_t> slots = tier_.pin_prefix(message.keys);
  if (slots.empty()) return {};
  const auto count = static_cast<std::ptrdiff_t>(slots.size());
  const LeaseId id{++last_id_};
  Lease& lease = leases_[id];
  lease.keys.assign(message.keys.begin(), message.keys.begin() + count);
  lease.owner = caf::actor_cast<caf::actor_addr>(current_sender());
  watch(lease.owner);
  PrefixLease reply{id, static_cast<int64_t>(slots.size()), {}, {}};
  Status status;
  for (Offer* const part : {&reply.for_encoder, &reply.for_decoder}) {
    auto offered = offer(slots, id, message.remaining, lease.offers);
    if (offered) *part = std::move(*offered);
    else status = offered.error();
  }
  lease.open = lease.offers.size();
  if (!status) {
    log::warn("cache", "cannot offer what it has", {{"error", status.error().message()}});
    end(lease);
    if (lease.open == 0) offer_ended(id);
    return {};
  }
  usage_.hit_blocks += reply.blocks;
  return reply;
}

Result<Offer> KvCache::offer(const std::vector<int64_t>& slots, LeaseId lease,
                             std::chrono::milliseconds remaining, std::vector<LeaseId>& offers) {
  transport::OfferRequest request;
  request.region = memory_->id();
  for (const int64_t slot : slots) {
    request.ranges.push_back(
        {static_cast<uint64_t>(slot * slot_bytes_), static_cast<uint64_t>(setup_.block_bytes), {}});
  }
  request.lease_deadline = transport::Clock::now() + remaining;
  // The region lives as long as the lease, even if this actor does not.
  const auto on_end = [cache = address(), lease, region = memory_](LeaseId, transport::LeaseEnd) {
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

void KvCache::refuse(const Offer& offer) {
  const auto descriptor = descriptor_of(offer);
  if (descriptor) setup_.plane.transport->release(descriptor->owner, descriptor->lease);
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
  const auto slot = tier_.store(store.chain[at + 1], store.chain[at], store.first + block);
  if (!slot) {
    ++usage_.dropped_blocks;
    return;
  }
  std::memcpy(memory_->memory().data + *slot * slot_bytes_, bytes.data(), bytes.size());
  ++usage_.stored_blocks;
}

void KvCache::block_arrived(const Attempt& attempt, int64_t index,
                            std::span<const std::byte> bytes) {
  const auto store = stores_.find(attempt.handoff);
  if (store != stores_.end()) keep(store->second, index, bytes);
}

void KvCache::state_arrived(const Attempt&, std::span<const std::byte>) {}

void KvCache::fetch_failed(const Attempt& attempt, const Error& error) {
  log::info("cache", "a stage took its offer back", {{"error", error.message()}});
  stores_.erase(attempt.handoff);
}

void KvCache::publish() {
  usage_.blocks = tier_.blocks();
  usage_.bytes = tier_.blocks() * setup_.block_bytes;
  usage_.capacity_bytes = tier_.slots() * slot_bytes_;
  usage_.pinned_blocks = tier_.pinned_blocks();
  usage_.leases = static_cast<int64_t>(leases_.size());
  usage_.evicted_blocks = tier_.evictions();
  if (!setup_.board) return;
  setup_.board->cache_blocks = usage_.blocks;
  setup_.board->cache_bytes = usage_.bytes;
  setup_.board->cache_leases = usage_.leases;
}

}  // namespace cedar::actors
