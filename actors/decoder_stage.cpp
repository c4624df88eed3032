#include "actors/decoder_stage.h"

#include <caf/send.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include "actors/errors.h"
#include "actors/offers.h"
#include "core/log.h"

namespace cedar::actors {

using monitoring::MetricId;

namespace {

double seconds(transport::Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

DecoderStage::DecoderStage(caf::actor_config& config, DecoderStageSetup setup)
    : typed_event_based_actor(config), setup_(std::move(setup)) {}

DecoderStage::behavior_type DecoderStage::make_behavior() {
  if (const Status started = start(); !started) {
    log::error("decoder", "cannot start", {{"error", started.error().message()}});
    quit(to_caf(started.error()));
  }
  publish_load();
  set_down_handler([this](caf::down_msg& down) {
    const auto session = sessions_.find(down.source);
    if (session != sessions_.end()) cancel(session->second);
  });
  return {
      [this](ReserveRoom& message) { return reserve(std::move(message)); },
      [this](const ImportBlocks& message) { import_blocks(message); },
      [this](const TakeOver& message) { take_over(message); },
      [this](const CancelWork& message) { cancel(message.attempt.handoff); },
      [this](StepAtom) { step(); },
      [this](const PullEnded& message) {
        puller_->pulled(message.pull, outcome(message.error));
        publish_load();
      },
      [this](const OwnerReached& message) {
        puller_->connected(message.owner, outcome(message.error));
        publish_load();
      },
      [this](const AnswerBlockEnded& message) { answer_blocks_->free(message.slot); },
  };
}

Status DecoderStage::start() {
  CEDAR_TRY(engine_, setup_.make_engine());
  setup_.pulls.block_bytes = engine_->block_bytes();
  setup_.pulls.state_bytes = engine_->max_handoff_bytes();
  setup_.pulls.trace = setup_.trace;
  setup_.pulls.metrics = setup_.metrics;
  OfferPuller::Handlers handlers;
  handlers.pulled = [stage = address()](uint64_t pull, const Status& status) {
    tell(stage, PullEnded{pull, outcome(status)});
  };
  handlers.connected = [stage = address()](const DataEndpoint& owner, const Status& status) {
    tell(stage, OwnerReached{owner, outcome(status)});
  };
  OfferPuller::Receiver& receiver = *this;
  puller_.emplace(*setup_.plane.transport, setup_.pulls, receiver, std::move(handlers));
  answer_blocks_.emplace(setup_.plane, engine_->block_bytes(),
                         [stage = address()](size_t slot) { tell(stage, AnswerBlockEnded{slot}); });
  engine_->on_block([this](RequestId number, int64_t index, std::span<const std::byte> bytes) {
    block_written(number, index, bytes);
  });
  return {};
}

void DecoderStage::on_exit() {
  for (Waiting& waiting : waiting_) {
    waiting.promise.deliver(to_caf(make_error(Errc::unavailable, "the decoder stage ended")));
  }
  waiting_.clear();
  lives_.clear();
  puller_.reset();
  engine_.reset();
  answer_blocks_.reset();
}

DecoderStage::Promise DecoderStage::reserve(ReserveRoom message) {
  Promise promise = make_response_promise<Promise>();
  if (!sessions_.emplace(message.session.address(), message.id).second) {
    promise.deliver(to_caf(make_error(Errc::invalid_argument, "the session has room already")));
    return promise;
  }
  monitor(message.session);
  // The handshake goes on while the encoder reads. Our own pages are read where they are.
  if (message.encoder != setup_.plane.endpoint) puller_->connect(message.encoder);
  const auto deadline = transport::Clock::now() + message.remaining;
  Waiting waiting{std::move(message), promise, deadline};
  if (!waiting_.empty() || !try_reserve(waiting)) waiting_.push_back(std::move(waiting));
  publish_load();
  return promise;
}

bool DecoderStage::try_reserve(Waiting& waiting) {
  const HandoffId handoff = waiting.message.id;
  engine::DecodeRequest request = waiting.message.request->decode;
  request.id = RequestId{++last_number_};
  const RequestId number = request.id;
  const auto status = engine_->reserve(std::move(request));
  if (status) {
    Live live;
    live.handoff = handoff;
    live.session = waiting.message.session;
    live.deadline = waiting.deadline;
    live.keep_blocks = waiting.message.keep_blocks;
    lives_.emplace(number, std::move(live));
    numbers_.emplace(handoff, number);
    waiting.promise.deliver(RoomReserved{handoff});
    return true;
  }
  if (status.error().code == Errc::overloaded && !lives_.empty()) return false;
  const caf::actor_addr session = waiting.message.session.address();
  demonitor(session);
  sessions_.erase(session);
  waiting.promise.deliver(to_caf(status.error()));
  return true;
}

void DecoderStage::reserve_waiting() {
  while (!waiting_.empty() && try_reserve(waiting_.front())) waiting_.pop_front();
}

DecoderStage::Lives::iterator DecoderStage::find(HandoffId handoff) {
  const auto number = numbers_.find(handoff);
  return number == numbers_.end() ? lives_.end() : lives_.find(number->second);
}

DecoderStage::Lives::iterator DecoderStage::accept(const Attempt& attempt) {
  const auto entry = find(attempt.handoff);
  if (entry == lives_.end()) return entry;
  Live& live = entry->second;
  if (live.started || attempt.number < live.attempt) return lives_.end();
  if (attempt.number > live.attempt) {
    puller_->drop({live.handoff, live.attempt});
    std::replace(live.blocks.begin(), live.blocks.end(), Block::asked, Block::missing);
    live.asked = 0;
    live.state.reset();
    live.attempt = attempt.number;
  }
  return entry;
}

void DecoderStage::import_blocks(const ImportBlocks& message) {
  const auto live = accept(message.attempt);
  if (live == lives_.end()) {
    if (const auto late = descriptor_of(message.blocks)) {
      setup_.plane.transport->release(late->owner, late->lease);
    }
    return;
  }
  if (const Status status = import_blocks(live, message); !status) {
    give_up_attempt(live, status.error());
  }
  publish_load();
}

Status DecoderStage::import_blocks(Lives::iterator entry, const ImportBlocks& message) {
  CEDAR_TRY(auto descriptor, descriptor_of(message.blocks));
  Live& live = entry->second;
  const auto count = static_cast<int64_t>(descriptor.ranges.size());
  const int64_t most = engine_->load().total_blocks;
  if (message.first < 0 || message.first > most || count > most - message.first) {
    return make_error(Errc::invalid_argument, std::to_string(count) + " KV blocks from block " +
                                                  std::to_string(message.first) +
                                                  ", the decoder has " + std::to_string(most));
  }
  for (const transport::ByteRange& range : descriptor.ranges) {
    if (static_cast<int64_t>(range.bytes) == engine_->block_bytes()) continue;
    return make_error(Errc::invalid_argument, "KV block of " + std::to_string(range.bytes) +
                                                  " bytes, expected " +
                                                  std::to_string(engine_->block_bytes()));
  }
  const auto end = static_cast<size_t>(message.first + count);
  if (live.blocks.size() < end) live.blocks.resize(end, Block::missing);
  // Blocks that an earlier encoder sent are here; nothing is fetched twice.
  Fetch fetch;
  fetch.attempt = message.attempt;
  fetch.owner = message.blocks.owner;
  fetch.deadline = live.deadline;
  const auto ranges = std::exchange(descriptor.ranges, {});
  for (int64_t i = 0; i < count; ++i) {
    if (live.blocks[static_cast<size_t>(message.first + i)] != Block::missing) continue;
    fetch.blocks.push_back(message.first + i);
    descriptor.ranges.push_back(ranges[static_cast<size_t>(i)]);
  }
  if (fetch.blocks.empty()) {
    setup_.plane.transport->release(descriptor.owner, descriptor.lease);
    return {};
  }
  for (const int64_t block : fetch.blocks) live.blocks[static_cast<size_t>(block)] = Block::asked;
  live.asked += static_cast<int64_t>(fetch.blocks.size());
  if (descriptor.owner == setup_.plane.transport->identity()) {
    {
      CEDAR_TRY(const auto bytes, setup_.plane.transport->read_in_place(descriptor));
      for (size_t i = 0; i < fetch.blocks.size(); ++i) {
        block_arrived(message.attempt, fetch.blocks[i], bytes[i]);
      }
    }
    setup_.plane.transport->release(descriptor.owner, descriptor.lease);
    return {};
  }
  fetch.source = std::move(descriptor);
  puller_->add(std::move(fetch));
  return {};
}

void DecoderStage::block_arrived(const Attempt& attempt, int64_t index,
                                 std::span<const std::byte> bytes) {
  const auto entry = find(attempt.handoff);
  if (entry == lives_.end()) return;
  Live& live = entry->second;
  const Status status = engine_->import_block(entry->first, index, bytes);
  if (!status) return fail(entry, status.error());
  live.blocks[static_cast<size_t>(index)] = Block::here;
  --live.asked;
  try_start(entry);
}

void DecoderStage::take_over(const TakeOver& message) {
  const auto live = accept(message.attempt);
  if (live == lives_.end()) {
    if (const auto late = descriptor_of(message.state)) {
      setup_.plane.transport->release(late->owner, late->lease);
    }
    return;
  }
  if (const Status status = take_over(live, message); !status) {
    give_up_attempt(live, status.error());
  }
}

Status DecoderStage::take_over(Lives::iterator entry, const TakeOver& message) {
  CEDAR_TRY(auto descriptor, descriptor_of(message.state));
  if (descriptor.ranges.size() != 1 ||
      static_cast<int64_t>(descriptor.bytes()) > engine_->max_handoff_bytes()) {
    return make_error(Errc::invalid_argument,
                      "hand-off state of " + std::to_string(descriptor.bytes()) + " bytes in " +
                          std::to_string(descriptor.ranges.size()) + " ranges, expected one of " +
                          std::to_string(engine_->max_handoff_bytes()) + " at most");
  }
  if (descriptor.owner == setup_.plane.transport->identity()) {
    {
      CEDAR_TRY(const auto bytes, setup_.plane.transport->read_in_place(descriptor));
      CEDAR_TRY(entry->second.state, engine::parse_handoff(bytes[0]));
    }
    setup_.plane.transport->release(descriptor.owner, descriptor.lease);
    try_start(entry);
    return {};
  }
  Fetch fetch;
  fetch.attempt = message.attempt;
  fetch.owner = message.state.owner;
  fetch.deadline = entry->second.deadline;
  fetch.source = std::move(descriptor);
  puller_->add(std::move(fetch));
  return {};
}

void DecoderStage::state_arrived(const Attempt& attempt, std::span<const std::byte> bytes) {
  const auto entry = find(attempt.handoff);
  if (entry == lives_.end()) return;
  auto state = engine::parse_handoff(bytes);
  if (!state) return give_up_attempt(entry, state.error());
  entry->second.state = std::move(*state);
  try_start(entry);
}

void DecoderStage::try_start(Lives::iterator entry) {
  Live& live = entry->second;
  if (live.started || !live.state || live.asked > 0) return;
  live.started = true;
  const Status status = engine_->start(entry->first, std::move(*live.state));
  live.state.reset();
  if (!status) return fail(entry, status.error());
  send(live.session, ReplayBegun{live.handoff});
  schedule_step();
  publish_load();
}

void DecoderStage::fetch_failed(const Attempt& attempt, const Error& error) {
  const auto entry = find(attempt.handoff);
  if (entry != lives_.end()) give_up_attempt(entry, error);
}

void DecoderStage::give_up_attempt(Lives::iterator entry, const Error& error) {
  Live& live = entry->second;
  const Attempt attempt{live.handoff, live.attempt};
  log::warn("decoder", "cannot fetch from an encoder", {{"error", error.message()}});
  puller_->drop(attempt);
  std::replace(live.blocks.begin(), live.blocks.end(), Block::asked, Block::missing);
  live.asked = 0;
  live.state.reset();
  // What is still on its way of this attempt is late now.
  ++live.attempt;
  send(live.session, PullFailed{attempt, error});
}

void DecoderStage::step() {
  step_scheduled_ = false;
  const auto begin = monitoring::Trace::Clock::now();
  setup_.metrics->observe(MetricId::decoder_mailbox_seconds, seconds(begin - step_sent_));
  auto events = engine_->step();
  if (events) {
    measure_step(begin, *events);
    std::map<RequestId, std::vector<engine::TokenEvent>> batches;
    for (engine::TokenEvent& event : *events) batches[event.id].push_back(std::move(event));
    for (auto& [number, tokens] : batches) {
      const auto live = lives_.find(number);
      if (live == lives_.end()) continue;
      const SessionActor session = live->second.session;
      const HandoffId handoff = live->second.handoff;
      // Free first: whoever sees the last token also sees the room it leaves.
      const engine::FinishReason finish = tokens.back().finish;
      if (finish != engine::FinishReason::none) {
        forget(live, finish == engine::FinishReason::failed ? WorkEnd::failed : WorkEnd::finished);
      }
      send(session, TokenBatch{handoff, std::move(tokens)});
    }
  } else {
    // The engine cannot say which sequence is to blame, so none of them can go on.
    log::error("decoder", "step failed", {{"error", events.error().message()}});
    setup_.metrics->add(MetricId::decoder_step_failures);
    while (!lives_.empty()) fail(lives_.begin(), events.error());
  }
  if (!engine_->idle()) schedule_step();
  publish_load();
}

void DecoderStage::measure_step(transport::TimePoint begin,
                                const std::vector<engine::TokenEvent>& events) const {
  const auto end = transport::Clock::now();
  if (setup_.trace) {
    setup_.trace->work(monitoring::Track::decoder, "step", begin, end,
                       {{"tokens", static_cast<int64_t>(events.size())},
                        {"sequences", static_cast<int64_t>(lives_.size())}});
  }
  const engine::StepStats rows = engine_->last_step();
  const auto failed = [](const engine::TokenEvent& event) {
    return event.finish == engine::FinishReason::failed;
  };
  const auto tokens = static_cast<double>(events.size()) -
                      static_cast<double>(std::count_if(events.begin(), events.end(), failed));
  setup_.metrics->observe(MetricId::decoder_step_seconds, seconds(end - begin));
  setup_.metrics->observe(MetricId::decoder_step_rows,
                          static_cast<double>(rows.replay_rows + rows.decode_rows));
  setup_.metrics->add(MetricId::decoder_replayed_rows, static_cast<double>(rows.replay_rows));
  setup_.metrics->add(MetricId::decoder_tokens, tokens);
}

/// From inside the engine's step.
void DecoderStage::block_written(RequestId number, int64_t index,
                                 std::span<const std::byte> bytes) {
  const auto live = lives_.find(number);
  if (live == lives_.end() || !live->second.keep_blocks) return;
  const auto offered = answer_blocks_->offer(bytes);
  if (offered) {
    send(live->second.session, BlockWritten{live->second.handoff, index, *offered});
  } else if (offered.error().code != Errc::overloaded) {
    log::warn("decoder", "cannot offer an answer's block", {{"error", offered.error().message()}});
  }
}

void DecoderStage::cancel(HandoffId handoff) {
  const auto waiting = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const Waiting& w) { return w.message.id == handoff; });
  if (waiting != waiting_.end()) {
    const caf::actor_addr session = waiting->message.session.address();
    demonitor(session);
    sessions_.erase(session);
    waiting->promise.deliver(to_caf(make_error(Errc::cancelled, "cancelled while waiting")));
    waiting_.erase(waiting);
  } else if (const auto live = find(handoff); live != lives_.end()) {
    forget(live, WorkEnd::abandoned);
  }
  publish_load();
}

void DecoderStage::fail(Lives::iterator live, const Error& error) {
  const SessionActor session = live->second.session;
  const HandoffId handoff = live->second.handoff;
  forget(live, WorkEnd::failed);
  send(session, StageFailed{{handoff, 0}, error});
}

void DecoderStage::forget(Lives::iterator live, WorkEnd end) {
  setup_.metrics->add(MetricId::decoder_sequences_ended, end);
  engine_->cancel(live->first);
  puller_->drop({live->second.handoff, live->second.attempt});
  const caf::actor_addr session = live->second.session.address();
  demonitor(session);
  sessions_.erase(session);
  numbers_.erase(live->second.handoff);
  lives_.erase(live);
  publish_load();
  reserve_waiting();
}

void DecoderStage::schedule_step() {
  if (step_scheduled_) return;
  step_scheduled_ = true;
  step_sent_ = transport::Clock::now();
  send(this, StepAtom::value);
}

void DecoderStage::publish_load() {
  if (!puller_) return;
  const engine::DecodeLoad load = engine_->load();
  LoadBoard& board = *setup_.board;
  board.decoder_sequences = static_cast<int64_t>(lives_.size());
  board.decoder_free_blocks = load.free_blocks;
  board.decoder_total_blocks = load.total_blocks;
  board.decoder_staging_slots = static_cast<int64_t>(puller_->slots_in_use());
}

}  // namespace cedar::actors
