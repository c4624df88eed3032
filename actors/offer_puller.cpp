#include "actors/offer_puller.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/log.h"
#include "core/units.h"

namespace cedar::actors {
namespace {

std::pair<uint32_t, uint64_t> key_of(const DataEndpoint& owner) {
  return {owner.node, owner.generation};
}

}  // namespace

OfferPuller::OfferPuller(transport::Transport& transport, const OfferPullerOptions& options,
                         Receiver& receiver, Handlers handlers)
    : transport_(transport),
      options_(options),
      receiver_(receiver),
      handlers_(std::move(handlers)) {
  blocks_.bytes = align_up(options.block_bytes, Buffer::kAlignment);
  blocks_.count = options.block_slots;
  states_.bytes = align_up(options.state_bytes, Buffer::kAlignment);
  states_.count = options.state_slots;
}

OfferPuller::~OfferPuller() {
  while (!fetches_.empty()) erase(fetches_.begin());
}

size_t OfferPuller::slots_in_use() const {
  const auto used = [](const Slots& slots) {
    return slots.region ? slots.count - slots.free.size() : 0;
  };
  return used(blocks_) + used(states_);
}

Status OfferPuller::prepare(Slots& slots) {
  if (slots.region) return {};
  const auto bytes = static_cast<uint64_t>(slots.bytes) * slots.count;
  CEDAR_TRY(const transport::Region region, transport_.allocate(bytes));
  slots.region = std::make_shared<ExportRegion>(transport_, region);
  for (size_t slot = slots.count; slot > 0; --slot) slots.free.push_back(slot - 1);
  return {};
}

void OfferPuller::connect(const DataEndpoint& owner) {
  if (!links_.emplace(key_of(owner), Link{++last_id_, false}).second) return;
  links_.erase(links_.lower_bound({owner.node, 0}), links_.find(key_of(owner)));
  transport_.connect({owner.host, owner.port}, identity_of(owner),
                     transport::Clock::now() + options_.connect_timeout,
                     [connected = handlers_.connected, owner](const auto& peer) {
                       connected(owner, peer ? Status{} : Status{peer.error()});
                     });
}

void OfferPuller::connected(const DataEndpoint& owner, const Status& status) {
  if (status) {
    const auto link = links_.find(key_of(owner));
    if (link != links_.end()) link->second.up = true;
    return pump();
  }
  log::warn("transfer", "cannot reach a node",
            {{"node", int64_t{owner.node}}, {"error", status.error().message()}});
  links_.erase(key_of(owner));
  std::vector<uint64_t> lost;
  for (const auto& [id, active] : fetches_) {
    if (active.fetch.owner == owner) lost.push_back(id);
  }
  for (const uint64_t id : lost) fail(id, status.error());
}

void OfferPuller::add(Fetch fetch) {
  const uint64_t id = ++last_id_;
  Active& active = fetches_[id];
  active.todo.push_back({0, fetch.source.ranges.size()});
  active.fetch = std::move(fetch);
  pump();
}

void OfferPuller::pump() {
  bool blocks_wait = false, states_wait = false;
  std::vector<uint64_t> ids;
  for (const auto& [id, active] : fetches_) {
    if (!active.todo.empty()) ids.push_back(id);
  }
  for (const uint64_t id : ids) {
    const auto at = fetches_.find(id);
    if (at == fetches_.end()) continue;
    const DataEndpoint& owner = at->second.fetch.owner;
    const auto link = links_.find(key_of(owner));
    if (link == links_.end()) connect(owner);
    // Whoever waits for a handshake does not keep others waiting.
    if (link == links_.end() || !link->second.up) continue;
    bool& wait = at->second.fetch.blocks.empty() ? states_wait : blocks_wait;
    while (!wait && fetches_.count(id) != 0 && !fetches_.at(id).todo.empty()) {
      wait = !issue(id, fetches_.at(id));
    }
  }
}

bool OfferPuller::issue(uint64_t id, Active& active) {
  const Fetch& fetch = active.fetch;
  Slots& slots = fetch.blocks.empty() ? states_ : blocks_;
  const bool needs_slots = fetch.target.region == nullptr;
  if (const Status ready = needs_slots ? prepare(slots) : Status{}; !ready) {
    fail(id, ready.error());
    return true;
  }
  Part& todo = active.todo.front();
  const size_t count =
      needs_slots ? std::min({todo.count, slots.free.size(), options_.pull_blocks}) : todo.count;
  if (count == 0) return false;
  Pull pull;
  pull.fetch = id;
  pull.link = links_.at(key_of(fetch.owner)).number;
  pull.part = {todo.first, count};
  pull.state = fetch.blocks.empty();
  transport::PullRequest request;
  request.source = fetch.source;
  const auto begin = fetch.source.ranges.begin() + static_cast<std::ptrdiff_t>(todo.first);
  request.source.ranges.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
  for (size_t i = 0; i < count && needs_slots; ++i) {
    const size_t slot = slots.free[slots.free.size() - 1 - i];
    pull.slots.push_back(slot);
    request.target.push_back({slots.region->id(), slot * static_cast<uint64_t>(slots.bytes)});
  }
  pull.target = fetch.target;
  if (!needs_slots) {
    request.target.push_back(
        {fetch.target.region->id(), static_cast<uint64_t>(fetch.target.offset)});
  }
  pull.begin = transport::Clock::now();
  pull.attempt = fetch.attempt;
  pull.bytes = request.source.bytes();
  request.deadline = std::min(fetch.deadline, pull.begin + options_.pull_timeout);
  request.release_lease = false;
  const uint64_t number = ++last_id_;
  // The region stays as long as someone may write to it, even without this object.
  auto started = transport_.pull(std::move(request),
                                 [pulled = handlers_.pulled, number,
                                  region = needs_slots ? slots.region : fetch.target.region](
                                     const Status& status) { pulled(number, status); });
  if (!started) {
    if (started.error().code == Errc::overloaded && !pulls_.empty()) return false;
    fail(id, started.error());
    return true;
  }
  slots.free.resize(slots.free.size() - pull.slots.size());
  pull.transfer = *started;
  pulls_.emplace(number, std::move(pull));
  ++active.running;
  todo.first += count;
  todo.count -= count;
  if (todo.count == 0) active.todo.pop_front();
  return true;
}

void OfferPuller::pulled(uint64_t number, const Status& status) {
  const auto at = pulls_.find(number);
  if (at == pulls_.end()) return;
  const Pull pull = std::move(at->second);
  pulls_.erase(at);
  const auto now = transport::Clock::now();
  if (status && options_.metrics) {
    const auto kind = pull.state ? monitoring::Pulled::state : monitoring::Pulled::blocks;
    options_.metrics->observe(monitoring::MetricId::transfer_seconds, kind,
                              std::chrono::duration<double>(now - pull.begin).count());
    options_.metrics->add(monitoring::MetricId::transfer_bytes, kind,
                          static_cast<double>(pull.bytes));
  }
  if (options_.trace) {
    options_.trace->span("pull", pull.state ? "state" : "blocks", number, pull.begin, now,
                         {{"blocks", pull.state ? 0 : static_cast<int64_t>(pull.part.count)},
                          {"bytes", static_cast<int64_t>(pull.bytes)},
                          {"ok", status ? 1 : 0},
                          {"handoff", static_cast<int64_t>(pull.attempt.handoff.value)}});
  }
  if (const auto fetch = fetches_.find(pull.fetch); fetch != fetches_.end()) {
    Active& active = fetch->second;
    --active.running;
    if (status) {
      deliver(pull);
    } else if (status.error().code == Errc::unavailable &&
               (active.lost_link == 0 || active.lost_link == pull.link)) {
      // The connection was lost, which says nothing about the owner: once more over a new one, which is one for all the
      // pulls that this one took with it.
      active.lost_link = pull.link;
      active.todo.push_front(pull.part);
      const auto link = links_.find(key_of(active.fetch.owner));
      if (link != links_.end() && link->second.number == pull.link) links_.erase(link);
    } else {
      fail(pull.fetch, status.error());
    }
  } else if (pull.failed) {
    receiver_.fetch_failed(pull.attempt, *pull.failed);
  }
  Slots& slots = pull.state ? states_ : blocks_;
  slots.free.insert(slots.free.end(), pull.slots.begin(), pull.slots.end());
  pump();
}

void OfferPuller::deliver(const Pull& pull) {
  const Slots& slots = pull.state ? states_ : blocks_;
  for (size_t i = 0; i < pull.part.count; ++i) {
    const auto at = fetches_.find(pull.fetch);
    if (at == fetches_.end()) return;  // the receiver has dropped it
    const Fetch& fetch = at->second.fetch;
    const size_t range = pull.part.first + i;
    const std::byte* const from =
        pull.target.region
            ? pull.target.region->memory().data + pull.target.offset
            : slots.region->memory().data + static_cast<int64_t>(pull.slots[i]) * slots.bytes;
    const std::span<const std::byte> bytes(from, fetch.source.ranges[range].bytes);
    const Attempt attempt = fetch.attempt;
    if (pull.state) {
      // Nothing of the offer is needed any more, and what follows may take long.
      erase(at);
      receiver_.state_arrived(attempt, bytes);
      return;
    }
    receiver_.block_arrived(attempt, fetch.blocks[range], bytes);
  }
  const auto at = fetches_.find(pull.fetch);
  if (at != fetches_.end() && at->second.todo.empty() && at->second.running == 0) erase(at);
}

void OfferPuller::erase(Fetches::iterator at) {
  const transport::RegionDescriptor& source = at->second.fetch.source;
  if (source.lease.value != 0) transport_.release(source.owner, source.lease);
  for (const auto& [number, pull] : pulls_) {
    if (pull.fetch == at->first) transport_.cancel(pull.transfer);
  }
  fetches_.erase(at);
}

void OfferPuller::drop(const Attempt& attempt) {
  for (auto at = fetches_.begin(); at != fetches_.end();) {
    const auto next = std::next(at);
    if (at->second.fetch.attempt == attempt) erase(at);
    at = next;
  }
}

void OfferPuller::fail(uint64_t fetch, const Error& error) {
  const auto at = fetches_.find(fetch);
  if (at == fetches_.end()) return;
  const Attempt attempt = at->second.fetch.attempt;
  bool written = false;
  for (auto& [number, pull] : pulls_) {
    if (pull.fetch != fetch || !pull.target.region) continue;
    pull.failed = error;
    written = true;
  }
  drop(attempt);
  if (!written) receiver_.fetch_failed(attempt, error);
}

}  // namespace cedar::actors
