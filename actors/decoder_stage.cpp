#include "actors/decoder_stage.h"

#include <algorithm>
#include <utility>

#include "actors/errors.h"
#include "core/log.h"

namespace cedar::actors {

DecoderStage::DecoderStage(caf::actor_config& config, const DecoderEngineFactory& make_engine,
                           std::shared_ptr<LoadBoard> board)
    : typed_event_based_actor(config), make_engine_(make_engine), board_(std::move(board)) {}

DecoderStage::behavior_type DecoderStage::make_behavior() {
  auto engine = make_engine_();
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
      [this](const BlocksReady& message) { import_blocks(message); },
      [this](const HandoffReady& message) { start(message); },
      [this](const CancelWork& message) { cancel(message.id); },
      [this](StepAtom) { step(); },
  };
}

void DecoderStage::on_exit() {
  for (Waiting& waiting : waiting_) {
    waiting.promise.deliver(to_caf(make_error(Errc::unavailable, "the decoder stage ended")));
  }
  waiting_.clear();
  live_.clear();
  engine_.reset();
}

DecoderStage::Promise DecoderStage::reserve(ReserveRoom message) {
  Promise promise = make_response_promise<Promise>();
  monitor(message.session);
  sessions_[message.session.address()] = message.request->decode.id;
  Waiting waiting{std::move(message), promise};
  if (!waiting_.empty() || !try_reserve(waiting)) waiting_.push_back(std::move(waiting));
  publish_load();
  return promise;
}

bool DecoderStage::try_reserve(Waiting& waiting) {
  const RequestId id = waiting.message.request->decode.id;
  const auto status = engine_->reserve(waiting.message.request->decode);
  if (status) {
    live_.emplace(id, waiting.message.session);
    waiting.promise.deliver(RoomReserved{id});
    return true;
  }
  if (status.error().code == Errc::overloaded && !live_.empty()) return false;
  const caf::actor_addr session = waiting.message.session.address();
  demonitor(session);
  sessions_.erase(session);
  waiting.promise.deliver(to_caf(status.error()));
  return true;
}

void DecoderStage::reserve_waiting() {
  while (!waiting_.empty() && try_reserve(waiting_.front())) waiting_.pop_front();
}

void DecoderStage::import_blocks(const BlocksReady& message) {
  if (live_.count(message.id) == 0) return;
  int64_t index = message.first;
  for (std::span<const std::byte> bytes : message.blocks) {
    const auto status = engine_->import_block(message.id, index++, bytes);
    if (!status) return fail(message.id, status.error());
  }
}

void DecoderStage::start(const HandoffReady& message) {
  if (live_.count(message.id) == 0) return;
  const auto status = engine_->start(message.id, std::move(*message.handoff));
  if (!status) return fail(message.id, status.error());
  send(live_.at(message.id), ReplayBegun{message.id});
  schedule_step();
  publish_load();
}

void DecoderStage::step() {
  step_scheduled_ = false;
  auto events = engine_->step();
  if (events) {
    std::map<RequestId, TokenBatch> batches;
    for (engine::TokenEvent& event : *events) batches[event.id].tokens.push_back(std::move(event));
    for (auto& [id, batch] : batches) {
      const auto live = live_.find(id);
      if (live == live_.end()) continue;
      const SessionActor session = live->second;
      // Free first: whoever sees the last token also sees the room it leaves.
      if (batch.tokens.back().finish != engine::FinishReason::none) forget(id);
      send(session, std::move(batch));
    }
  } else {
    // The engine cannot say which sequence is to blame, so none of them can go on.
    log::error("decoder", "step failed", {{"error", events.error().message()}});
    std::vector<RequestId> ids;
    for (const auto& [id, session] : live_) ids.push_back(id);
    for (RequestId id : ids) fail(id, events.error());
  }
  if (!engine_->idle()) schedule_step();
  publish_load();
}

void DecoderStage::cancel(RequestId id) {
  const auto waiting = std::find_if(waiting_.begin(), waiting_.end(), [id](const Waiting& w) {
    return w.message.request->decode.id == id;
  });
  if (waiting != waiting_.end()) {
    const caf::actor_addr session = waiting->message.session.address();
    demonitor(session);
    sessions_.erase(session);
    waiting->promise.deliver(to_caf(make_error(Errc::cancelled, "cancelled while waiting")));
    waiting_.erase(waiting);
  } else if (live_.count(id) != 0) {
    forget(id);
  }
  publish_load();
}

void DecoderStage::fail(RequestId id, const Error& error) {
  const SessionActor session = live_.at(id);
  forget(id);
  send(session, StageFailed{error});
}

void DecoderStage::forget(RequestId id) {
  engine_->cancel(id);
  const auto live = live_.find(id);
  const caf::actor_addr session = live->second.address();
  demonitor(session);
  sessions_.erase(session);
  live_.erase(live);
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
  board_->decoder_sequences = static_cast<int64_t>(live_.size());
  board_->decoder_free_blocks = load.free_blocks;
  board_->decoder_total_blocks = load.total_blocks;
}

}  // namespace cedar::actors
