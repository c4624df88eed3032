#include "actors/decoder_stage.h"

#include <algorithm>
#include <utility>

#include "actors/errors.h"
#include "core/log.h"

namespace cedar::actors {

DecoderStage::DecoderStage(caf::actor_config& config, DecoderStageSetup setup)
    : typed_event_based_actor(config), setup_(std::move(setup)) {}

DecoderStage::behavior_type DecoderStage::make_behavior() {
  auto engine = setup_.make_engine();
  if (engine) {
    engine_ = std::move(*engine);
  } else {
    log::error("decoder", "cannot start", {{"error", engine.error().message()}});
    quit(to_caf(engine.error()));
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
  };
}

void DecoderStage::on_exit() {
  for (Waiting& waiting : waiting_) {
    waiting.promise.deliver(to_caf(make_error(Errc::unavailable, "the decoder stage ended")));
  }
  waiting_.clear();
  lives_.clear();
  engine_.reset();
}

DecoderStage::Promise DecoderStage::reserve(ReserveRoom message) {
  Promise promise = make_response_promise<Promise>();
  if (!sessions_.emplace(message.session.address(), message.id).second) {
    promise.deliver(to_caf(make_error(Errc::invalid_argument, "the session has room already")));
    return promise;
  }
  monitor(message.session);
  Waiting waiting{std::move(message), promise};
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
    lives_.emplace(number, Live{handoff, waiting.message.session});
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

namespace {

Result<transport::RegionDescriptor> descriptor_of(const Offer& offer) {
  return transport::parse_descriptor(
      {reinterpret_cast<const std::byte*>(offer.descriptor.data()), offer.descriptor.size()});
}

}  // namespace

void DecoderStage::import_blocks(const ImportBlocks& message) {
  const auto live = find(message.attempt.handoff);
  if (live == lives_.end()) return;
  const auto import = [&]() -> Status {
    CEDAR_TRY(const auto descriptor, descriptor_of(message.blocks));
    CEDAR_TRY(const auto bytes, setup_.plane.transport->read_in_place(descriptor));
    for (size_t i = 0; i < descriptor.ranges.size(); ++i) {
      CEDAR_CHECK_OK(
          engine_->import_block(live->first, message.first + static_cast<int64_t>(i), bytes[i]));
    }
    setup_.plane.transport->release(descriptor.owner, descriptor.lease);
    return {};
  };
  if (const Status status = import(); !status) fail(live, status.error());
}

void DecoderStage::take_over(const TakeOver& message) {
  const auto live = find(message.attempt.handoff);
  if (live == lives_.end()) return;
  const auto start = [&]() -> Status {
    CEDAR_TRY(const auto descriptor, descriptor_of(message.state));
    CEDAR_TRY(const auto bytes, setup_.plane.transport->read_in_place(descriptor));
    CEDAR_TRY(engine::Handoff handoff, engine::parse_handoff(bytes[0]));
    setup_.plane.transport->release(descriptor.owner, descriptor.lease);
    return engine_->start(live->first, std::move(handoff));
  };
  if (const Status status = start(); !status) return fail(live, status.error());
  send(live->second.session, ReplayBegun{live->second.handoff});
  schedule_step();
  publish_load();
}

void DecoderStage::step() {
  step_scheduled_ = false;
  auto events = engine_->step();
  if (events) {
    std::map<RequestId, std::vector<engine::TokenEvent>> batches;
    for (engine::TokenEvent& event : *events) batches[event.id].push_back(std::move(event));
    for (auto& [number, tokens] : batches) {
      const auto live = lives_.find(number);
      if (live == lives_.end()) continue;
      const Live known = live->second;
      // Free first: whoever sees the last token also sees the room it leaves.
      if (tokens.back().finish != engine::FinishReason::none) forget(live);
      send(known.session, TokenBatch{known.handoff, std::move(tokens)});
    }
  } else {
    // The engine cannot say which sequence is to blame, so none of them can go on.
    log::error("decoder", "step failed", {{"error", events.error().message()}});
    while (!lives_.empty()) fail(lives_.begin(), events.error());
  }
  if (!engine_->idle()) schedule_step();
  publish_load();
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
    forget(live);
  }
  publish_load();
}

void DecoderStage::fail(Lives::iterator live, const Error& error) {
  const Live known = live->second;
  forget(live);
  send(known.session, StageFailed{{known.handoff, 0}, error});
}

void DecoderStage::forget(Lives::iterator live) {
  engine_->cancel(live->first);
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
  send(this, StepAtom::value);
}

void DecoderStage::publish_load() {
  if (!engine_) return;
  const engine::DecodeLoad load = engine_->load();
  LoadBoard& board = *setup_.board;
  board.decoder_sequences = static_cast<int64_t>(lives_.size());
  board.decoder_free_blocks = load.free_blocks;
  board.decoder_total_blocks = load.total_blocks;
}

}  // namespace cedar::actors
