#include "actors/encoder_stage.h"

#include <caf/send.hpp>

#include <algorithm>
#include <utility>

#include "actors/errors.h"
#include "actors/offers.h"
#include "core/log.h"
#include "core/units.h"

namespace cedar::actors {

using monitoring::MetricId;

namespace {

/// States that wait for their decoders at a time; a prompt that finds none free waits with its own.
constexpr size_t kStateSlots = 4;
/// Windows that wait for the cache; those that find none free are not kept.
constexpr size_t kWindowSlots = 4;
/// A cache that takes longer to take blocks over does not get them, because pages wait for it.
constexpr std::chrono::seconds kKeepTime{3};

ResumeKind kind_of(engine::ResumeKind kind) {
  switch (kind) {
    case engine::ResumeKind::none: return ResumeKind::none;
    case engine::ResumeKind::windows: return ResumeKind::windows;
    case engine::ResumeKind::bounded: return ResumeKind::bounded;
    case engine::ResumeKind::exact: return ResumeKind::exact;
  }
  return ResumeKind::none;
}

double seconds(transport::Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

EncoderStage::EncoderStage(caf::actor_config& config, EncoderStageSetup setup)
    : typed_event_based_actor(config), setup_(std::move(setup)) {}

EncoderStage::behavior_type EncoderStage::make_behavior() {
  if (const Status started = start(); !started) {
    log::error("encoder", "cannot start", {{"error", started.error().message()}});
    engine_.reset();
    quit(to_caf(started.error()));
  }
  publish_load();
  set_down_handler([this](caf::down_msg& down) {
    for (const RequestId id : index_.of(down.source)) cancel(works_.find(id));
  });
  return {
      [this](BeginPrefill& message) { begin(std::move(message)); },
      [this](const CancelWork& message) { cancel(message.attempt); },
      [this](const LeaseReturned& message) { lease_ended(message); },
      [this](StepAtom) { step(); },
      [this](const CachedPullEnded& message) {
        if (puller_) puller_->pulled(message.pull, outcome(message.error));
      },
      [this](const CacheReached& message) {
        if (puller_) puller_->connected(message.owner, outcome(message.error));
      },
  };
}

Status EncoderStage::start() {
  CEDAR_TRY(engine_, setup_.make_engine());
  CEDAR_CHECK_OK(states_.allocate(*setup_.memory, engine_->max_handoff_bytes(), kStateSlots));
  setup_.board->encoder_total_blocks = engine_->load().free_blocks;
  OfferPullerOptions options;
  options.metrics = setup_.metrics;
  options.block_bytes = engine_->block_bytes();
  options.state_bytes = engine_->max_handoff_bytes();
  options.connect_timeout = options.pull_timeout = kCachePatience;
  OfferPuller::Handlers handlers;
  handlers.pulled = [stage = address()](uint64_t pull, const Status& status) {
    tell(stage, CachedPullEnded{pull, outcome(status)});
  };
  handlers.connected = [stage = address()](const DataEndpoint& owner, const Status& status) {
    tell(stage, CacheReached{owner, outcome(status)});
  };
  OfferPuller::Receiver& receiver = *this;
  puller_.emplace(*setup_.plane.transport, options, receiver, std::move(handlers));
  return {};
}

void EncoderStage::on_exit() {
  // Nobody gets pages from here any more: what is being read stays until it is read, all else is free.
  for (const auto& [id, work] : works_) {
    for (const LeaseId lease : work.leases) setup_.plane.transport->revoke(lease);
    for (const LeaseId lease : work.cache_leases) setup_.plane.transport->revoke(lease);
  }
  works_.clear();
  waiting_.clear();
  puller_.reset();
  engine_.reset();
  states_.clear();
  windows_.clear();
}

void EncoderStage::begin(BeginPrefill message) {
  const RequestId id{++last_work_};
  if (!index_.add(message, id)) {
    send(message.session,
         StageFailed{message.attempt,
                     make_error(Errc::invalid_argument, "the attempt is being worked on")});
    return;
  }
  Work& work = works_[id];
  work.deadline = transport::Clock::now() + message.remaining;
  work.begin = std::move(message);
  if (!waiting_.empty() || !try_submit(id)) waiting_.push_back(id);
  publish_load();
}

bool EncoderStage::try_submit(RequestId id) {
  Work& work = works_.at(id);
  const GenerateRequest& request = *work.begin.request;
  engine::PrefillRequest prefill{id, engine::tokens_to_read(request.decode), request.images};
  work.length = static_cast<Position>(prefill.tokens.size());
  if (work.begin.cached_blocks > 0) {
    prefill.cached_blocks =
        engine_->usable_blocks(work.length, work.begin.cached_blocks, work.begin.windows_at);
  }
  prefill.keep_windows = work.begin.keep_windows;
  work.cached_blocks = prefill.cached_blocks;
  const auto status = engine_->submit(std::move(prefill));
  if (status) {
    work.in_engine = true;
    if (work.cached_blocks > 0) {
      fetch_cached(id);
    } else {
      schedule_step();
    }
    return true;
  }
  const bool room_will_come = works_.size() > waiting_.size() + 1;
  if (status.error().code == Errc::overloaded && room_will_come) return false;
  fail(id, status.error());
  return true;
}

void EncoderStage::submit_waiting() {
  while (!waiting_.empty()) {
    const RequestId id = waiting_.front();
    waiting_.pop_front();
    if (!try_submit(id)) {
      waiting_.push_front(id);
      return;
    }
  }
}

void EncoderStage::step() {
  step_scheduled_ = false;
  const auto begin = monitoring::Trace::Clock::now();
  setup_.metrics->observe(MetricId::encoder_mailbox_seconds, seconds(begin - step_sent_));
  auto events = engine_->step();
  if (events) {
    measure_chunk(begin, *events);
    for (const engine::PrefillEvent& event : *events) report(event);
  } else {
    // The engine cannot say which request is to blame, so none of them can go on.
    log::error("encoder", "step failed", {{"error", events.error().message()}});
    setup_.metrics->add(MetricId::encoder_step_failures);
    std::vector<RequestId> ids;
    for (const auto& [id, work] : works_) {
      if (work.in_engine && !work.abandoned && !work.finished) ids.push_back(id);
    }
    for (RequestId id : ids) fail(id, events.error());
  }
  if (!engine_->idle()) schedule_step();
  publish_load();
}

void EncoderStage::measure_chunk(transport::TimePoint begin,
                                 const std::vector<engine::PrefillEvent>& events) const {
  if (events.empty()) return;
  const auto end = transport::Clock::now();
  int64_t rows = 0;
  for (const engine::PrefillEvent& event : events) rows += event.rows;
  setup_.metrics->observe(MetricId::encoder_chunk_seconds, seconds(end - begin));
  setup_.metrics->observe(MetricId::encoder_chunk_rows, static_cast<double>(rows));
  setup_.metrics->add(MetricId::encoder_rows, static_cast<double>(rows));
  if (!setup_.trace) return;
  setup_.trace->work(monitoring::Track::encoder, "chunk", begin, end,
                     {{"rows", rows}, {"requests", static_cast<int64_t>(events.size())}});
}

void EncoderStage::report(const engine::PrefillEvent& event) {
  const auto entry = works_.find(event.id);
  if (entry == works_.end() || entry->second.abandoned) return;
  Work& work = entry->second;
  PrefillProgress progress;
  progress.attempt = work.begin.attempt;
  progress.computed = event.computed;
  progress.cached_blocks = work.cached_blocks;
  progress.resume = kind_of(event.resume);
  progress.replayed = event.replayed;
  const Status offered = offer_blocks(event.id, work, event.blocks_ready, progress);
  if (!offered) return fail(event.id, offered.error());
  if (event.windows_at > 0) offer_windows(event.id, work, progress);
  if (event.finished) {
    hand_over(event.id, work, std::move(progress));
  } else {
    send(work.begin.session, std::move(progress));
  }
}

Status EncoderStage::offer_blocks(RequestId id, Work& work, int64_t ready,
                                  PrefillProgress& progress) {
  if (ready <= work.offered_blocks) return {};
  std::vector<std::span<const std::byte>> blocks;
  for (int64_t i = work.offered_blocks; i < ready; ++i) blocks.push_back(engine_->block(id, i));
  CEDAR_TRY(Offered offered, offer(id, work.deadline, blocks));
  work.leases.insert(offered.lease);
  progress.blocks = std::move(offered.offer);
  progress.first_block = work.offered_blocks;
  const int64_t keep = std::min(ready, work.begin.keep_blocks) - work.offered_blocks;
  if (keep > 0) {
    blocks.resize(static_cast<size_t>(keep));
    const auto deadline = std::min(work.deadline, transport::Clock::now() + kKeepTime);
    CEDAR_TRY(Offered kept, offer(id, deadline, blocks));
    work.cache_leases.insert(kept.lease);
    progress.for_cache = std::move(kept.offer);
  }
  work.offered_blocks = ready;
  return {};
}

void EncoderStage::hand_over(RequestId id, Work& work, PrefillProgress progress) {
  if (!states_.has_free()) {
    // The blocks need not wait for a slot, nor the windows.
    waiting_for_slot_.push_back(progress);
    waiting_for_slot_.back().blocks = {};
    waiting_for_slot_.back().for_cache = {};
    waiting_for_slot_.back().windows_at = 0;
    waiting_for_slot_.back().windows = {};
    send(work.begin.session, std::move(progress));
    return;
  }
  if (const Status offered = offer_state(id, work, progress); !offered) {
    return fail(id, offered.error());
  }
  work.finished = true;
  progress.finished = true;
  send(work.begin.session, std::move(progress));
}

Status EncoderStage::offer_state(RequestId id, Work& work, PrefillProgress& progress) {
  CEDAR_TRY(const engine::Handoff handoff, engine_->take_handoff(id));
  CEDAR_TRY(const StateSlots::Kept kept, states_.keep(handoff));
  work.state_slot = kept.slot;
  CEDAR_TRY(Offered offered, offer(id, work.deadline, {&kept.bytes, 1}));
  work.leases.insert(offered.lease);
  progress.state = std::move(offered.offer);
  return {};
}

void EncoderStage::offer_windows(RequestId id, Work& work, PrefillProgress& progress) {
  const auto offered = [&]() -> Status {
    if (!windows_.allocated()) {
      CEDAR_CHECK_OK(windows_.allocate(*setup_.memory, engine_->max_handoff_bytes(), kWindowSlots));
    }
    // A later chunk of the prompt may find one free.
    if (!windows_.has_free()) return {};
    CEDAR_TRY(const engine::Handoff state, engine_->take_windows(id));
    CEDAR_TRY(const StateSlots::Kept kept, windows_.keep(state));
    const auto deadline = std::min(work.deadline, transport::Clock::now() + kKeepTime);
    auto lent = offer(id, deadline, {&kept.bytes, 1});
    if (!lent) {
      windows_.give_back(kept.slot);
      return lent.error();
    }
    work.windows = {kept.slot, lent->lease};
    work.cache_leases.insert(lent->lease);
    progress.windows_at = state.length;
    progress.windows = std::move(lent->offer);
    return {};
  }();
  if (!offered) log::warn("encoder", "keeps no windows", {{"error", offered.error().message()}});
}

Result<EncoderStage::Offered> EncoderStage::offer(
    RequestId id, transport::TimePoint deadline,
    std::span<const std::span<const std::byte>> parts) {
  transport::OfferRequest request;
  ExportMemory::Place place;
  for (const std::span<const std::byte> part : parts) {
    CEDAR_TRY(place, setup_.memory->locate(part));
    request.ranges.push_back({place.offset, part.size(), {}});
  }
  request.region = place.region->id();
  request.lease_deadline = deadline;
  // The region lives as long as the lease, even if this stage does not.
  const auto on_end = [stage = address(), id, region = place.region](LeaseId lease,
                                                                     transport::LeaseEnd) {
    if (auto actor = caf::actor_cast<caf::actor>(stage)) {
      caf::anon_send<caf::message_priority::high>(actor, LeaseReturned{id, lease});
    }
  };
  CEDAR_TRY(const auto descriptor, setup_.plane.transport->offer(std::move(request), on_end));
  return Offered{make_offer(descriptor, setup_.plane.endpoint), descriptor.lease};
}

void EncoderStage::cancel(const Attempt& attempt) {
  if (const auto work = index_.find(attempt)) cancel(works_.find(*work));
}

void EncoderStage::cancel(Works::iterator entry) {
  if (entry == works_.end()) return;
  Work& work = entry->second;
  if (!work.in_engine) {
    std::erase(waiting_, entry->first);
    forget(entry);
    publish_load();
    return;
  }
  work.abandoned = true;
  std::erase_if(waiting_for_slot_, [&](const PrefillProgress& progress) {
    return progress.attempt == work.begin.attempt;
  });
  drop_fetches(work);
  // Pulls under way end first; then the leases come back one by one. What has been read to the end is worth keeping.
  for (const LeaseId lease : work.leases) setup_.plane.transport->revoke(lease);
  if (!work.finished) {
    for (const LeaseId lease : work.cache_leases) setup_.plane.transport->revoke(lease);
  }
  release_if_done(entry);
}

void EncoderStage::lease_ended(const LeaseReturned& message) {
  const auto entry = works_.find(message.work);
  if (entry == works_.end()) return;
  Work& work = entry->second;
  work.leases.erase(message.lease);
  work.cache_leases.erase(message.lease);
  if (work.windows && work.windows->lease == message.lease) {
    windows_.give_back(work.windows->slot);
    work.windows.reset();
  }
  release_if_done(entry);
}

void EncoderStage::release_if_done(Works::iterator entry) {
  Work& work = entry->second;
  if (!work.leases.empty() || !work.cache_leases.empty()) return;
  if (!work.finished && !work.abandoned) return;
  engine_->release(entry->first);
  if (work.state_slot) states_.give_back(*work.state_slot);
  forget(entry);
  while (states_.has_free() && !waiting_for_slot_.empty()) {
    PrefillProgress progress = std::move(waiting_for_slot_.front());
    waiting_for_slot_.pop_front();
    const RequestId id = *index_.find(progress.attempt);
    hand_over(id, works_.at(id), std::move(progress));
  }
  submit_waiting();
  publish_load();
}

void EncoderStage::fail(RequestId id, const Error& error) {
  const auto entry = works_.find(id);
  entry->second.failed = true;
  send(entry->second.begin.session, StageFailed{entry->second.begin.attempt, error});
  cancel(entry);
}

void EncoderStage::forget(Works::iterator entry) {
  using monitoring::WorkEnd;
  setup_.metrics->add(MetricId::encoder_prompts, entry->second.finished ? WorkEnd::finished
                                                 : entry->second.failed ? WorkEnd::failed
                                                                        : WorkEnd::abandoned);
  index_.remove(entry->second.begin, entry->first);
  works_.erase(entry);
}

void EncoderStage::schedule_step() {
  if (step_scheduled_) return;
  step_scheduled_ = true;
  step_sent_ = transport::Clock::now();
  send(this, StepAtom::value);
}

void EncoderStage::publish_load() {
  if (!engine_) return;
  const engine::PrefillLoad load = engine_->load();
  LoadBoard& board = *setup_.board;
  board.encoder_requests = static_cast<int64_t>(works_.size());
  board.encoder_queued_tokens = load.queued_tokens;
  board.encoder_free_blocks = load.free_blocks;
}

}  // namespace cedar::actors
