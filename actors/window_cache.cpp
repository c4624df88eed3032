#include "actors/window_cache.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <unistd.h>

#include "actors/offers.h"
#include "core/log.h"

namespace cedar::actors {
namespace {

constexpr std::chrono::seconds kFetchTimeout{3};
/// Sessions that found a state and have not brought another one; most of them never will.
constexpr size_t kMostUsed = 4096;

int64_t tenth_of_memory() {
  return static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE) / 10;
}

}  // namespace

Status WindowCache::start(transport::Transport& transport, const CacheOptions& options) {
  transport_ = &transport;
  const int64_t bytes = std::min(options.window_bytes, tenth_of_memory());
  if (bytes < WindowPool::kAlignment) return {};
  CEDAR_TRY(const transport::Region region, transport.allocate(static_cast<uint64_t>(bytes)));
  region_ = std::make_shared<ExportRegion>(transport, region);
  pool_ = WindowPool(bytes, options.window_ttl);
  return {};
}

void WindowCache::stop() {
  arriving_.clear();
  used_.clear();
  region_.reset();
}

Status WindowCache::store(const StoreWindows& message, const caf::actor_addr& session, HandoffId id,
                          OfferPuller& puller) {
  CEDAR_TRY(auto source, descriptor_of(message.windows));
  const auto release = [&] { transport_->release(source.owner, source.lease); };
  if (source.ranges.size() != 1 || message.windows_at < 1) {
    release();
    return make_error(Errc::invalid_argument, "windows in " + std::to_string(source.ranges.size()) +
                                                  " ranges, at token " +
                                                  std::to_string(message.windows_at));
  }
  const auto place = pool_.store(message.key, static_cast<int64_t>(source.ranges[0].bytes),
                                 message.windows_at, transport::Clock::now());
  if (!place) {
    release();
    return {};
  }
  const Arriving arriving{message.key, session};
  if (source.owner == transport_->identity()) {
    Status taken;
    {
      const auto bytes = transport_->read_in_place(source);
      if (bytes) {
        const std::span<const std::byte> state = (*bytes)[0];
        std::memcpy(region_->memory().data + place->offset, state.data(), state.size());
        finish(arriving);
      } else {
        pool_.abandon(message.key);
        taken = bytes.error();
      }
    }
    release();
    return taken;
  }
  arriving_.emplace(id, arriving);
  Fetch fetch;
  fetch.attempt = {id, 1};
  fetch.owner = message.windows.owner;
  fetch.deadline = transport::Clock::now() + kFetchTimeout;
  fetch.target = {region_, place->offset};
  fetch.source = std::move(source);
  puller.add(std::move(fetch));
  return {};
}

void WindowCache::finish(const Arriving& state) {
  pool_.finish(state.key);
  // The turn that this state is of began with the former one.
  const auto former = used_.find(state.session);
  if (former == used_.end()) return;
  if (former->second != state.key) pool_.replaced(former->second);
  used_.erase(former);
}

void WindowCache::arrived(HandoffId id) {
  const auto at = arriving_.find(id);
  if (at == arriving_.end()) return;
  finish(at->second);
  arriving_.erase(at);
}

void WindowCache::failed(HandoffId id) {
  const auto at = arriving_.find(id);
  if (at == arriving_.end()) return;
  pool_.abandon(at->second.key);
  arriving_.erase(at);
}

std::optional<WindowCache::Found> WindowCache::find(std::span<const model::BlockKey> prefix,
                                                    const caf::actor_addr& session) {
  if (!region_) return {};
  ++lookups_;
  for (size_t i = prefix.size(); i > 0; --i) {
    const model::BlockKey& key = prefix[i - 1];
    if (!pool_.has(key)) continue;
    const WindowPool::Place place = pool_.pin(key, transport::Clock::now());
    ++hits_;
    while (used_.size() >= kMostUsed) used_.erase(used_.begin());
    if (session) used_[session] = key;
    return Found{key,
                 place.tokens,
                 {static_cast<uint64_t>(place.offset), static_cast<uint64_t>(place.bytes), {}}};
  }
  return {};
}

void WindowCache::expire() { pool_.expire(transport::Clock::now()); }

void WindowCache::count(CacheUsage& usage) const {
  usage.windows = pool_.states();
  usage.window_bytes = pool_.bytes();
  usage.window_capacity_bytes = pool_.capacity_bytes();
  usage.window_lookups = lookups_;
  usage.window_hits = hits_;
  usage.windows_expired = pool_.expired();
  usage.windows_evicted = pool_.evicted();
}

}  // namespace cedar::actors
