#include "actors/encoder_stage.h"

#include <caf/send.hpp>

#include <algorithm>
#include <utility>

#include "actors/errors.h"
#include "core/log.h"

namespace cedar::actors {
namespace {

/// Tells the stage when the last reader of a prompt's blocks is gone. Keeps the pages' memory alive even
/// when the stage died meanwhile.
class BlockLease {
 public:
  BlockLease(caf::actor_addr stage, RequestId id, std::shared_ptr<EncoderEngine> engine)
      : stage_(std::move(stage)), id_(id), engine_(std::move(engine)) {}
  BlockLease(const BlockLease&) = delete;
  BlockLease& operator=(const BlockLease&) = delete;
  ~BlockLease() {
    if (auto stage = caf::actor_cast<caf::actor>(stage_)) {
      caf::anon_send<caf::message_priority::high>(stage, LeaseReturned{id_});
    }
  }

 private:
  caf::actor_addr stage_;
  RequestId id_;
  std::shared_ptr<EncoderEngine> engine_;
};

}  // namespace

EncoderStage::EncoderStage(caf::actor_config& config, const EncoderEngineFactory& make_engine,
                           std::shared_ptr<LoadBoard> board)
    : typed_event_based_actor(config), make_engine_(make_engine), board_(std::move(board)) {}

EncoderStage::behavior_type EncoderStage::make_behavior() {
  auto engine = make_engine_();
  if (engine) {
    engine_ = std::move(*engine);
  } else {
    log::error("encoder", "cannot start", {{"error", engine.error().message()}});
    quit(to_caf(engine.error()));
  }
  publish_load();
  set_down_handler([this](caf::down_msg& down) {
    const auto session = sessions_.find(down.source);
    if (session != sessions_.end()) cancel(session->second);
  });
  return {
      [this](BeginPrefill& message) { begin(std::move(message)); },
      [this](const CancelWork& message) { cancel(message.id); },
      [this](const LeaseReturned& message) { release(message.id); },
      [this](StepAtom) { step(); },
  };
}

void EncoderStage::on_exit() {
  works_.clear();
  waiting_.clear();
  engine_.reset();
}

void EncoderStage::begin(BeginPrefill message) {
  const RequestId id = message.request->decode.id;
  monitor(message.session);
  sessions_[message.session.address()] = id;
  works_[id].begin = std::move(message);
  if (!waiting_.empty() || !try_submit(id)) waiting_.push_back(id);
  publish_load();
}

bool EncoderStage::try_submit(RequestId id) {
  Work& work = works_.at(id);
  const GenerateRequest& request = *work.begin.request;
  const auto status = engine_->submit({id, request.decode.prompt, request.images});
  if (status) {
    work.lease = std::make_shared<BlockLease>(address(), id, engine_);
    schedule_step();
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
  auto events = engine_->step();
  if (events) {
    for (const engine::PrefillEvent& event : *events) report(event);
  } else {
    // The engine cannot say which request is to blame, so none of them can go on.
    log::error("encoder", "step failed", {{"error", events.error().message()}});
    std::vector<RequestId> ids;
    for (const auto& [id, work] : works_) {
      if (work.lease && !work.abandoned) ids.push_back(id);
    }
    for (RequestId id : ids) fail(id, events.error());
  }
  if (!engine_->idle()) schedule_step();
  publish_load();
}

void EncoderStage::report(const engine::PrefillEvent& event) {
  const auto entry = works_.find(event.id);
  if (entry == works_.end() || entry->second.abandoned) return;
  Work& work = entry->second;
  announce_blocks(event.id, work, event.blocks_ready);
  if (event.finished) {
    auto handoff = engine_->take_handoff(event.id);
    if (!handoff) return fail(event.id, handoff.error());
    send(work.begin.decoder,
         HandoffReady{event.id, std::make_shared<engine::Handoff>(std::move(*handoff))});
  }
  send(work.begin.session, PrefillProgress{event.computed, event.finished});
  if (event.finished) work.lease.reset();  // may come back at once
}

void EncoderStage::announce_blocks(RequestId id, Work& work, int64_t ready) {
  if (ready <= work.announced) return;
  BlocksReady message{id, work.announced, {}, work.lease};
  for (int64_t i = work.announced; i < ready; ++i) message.blocks.push_back(engine_->block(id, i));
  work.announced = ready;
  send(work.begin.decoder, std::move(message));
}

void EncoderStage::cancel(RequestId id) {
  const auto entry = works_.find(id);
  if (entry == works_.end()) return;
  const auto waiting = std::find(waiting_.begin(), waiting_.end(), id);
  if (waiting != waiting_.end()) {
    waiting_.erase(waiting);
    forget(entry);
    publish_load();
    return;
  }
  // The pages are free as soon as the decoder, which is told too, has dropped its announcements.
  entry->second.abandoned = true;
  entry->second.lease.reset();
}

void EncoderStage::release(RequestId id) {
  const auto entry = works_.find(id);
  if (entry == works_.end()) return;
  engine_->release(id);
  forget(entry);
  submit_waiting();
  publish_load();
}

void EncoderStage::fail(RequestId id, const Error& error) {
  const auto entry = works_.find(id);
  send(entry->second.begin.session, StageFailed{error});
  if (entry->second.lease) {
    cancel(id);
  } else {
    forget(entry);
  }
}

void EncoderStage::forget(std::map<RequestId, Work>::iterator entry) {
  const caf::actor_addr session = entry->second.begin.session.address();
  demonitor(session);
  sessions_.erase(session);
  works_.erase(entry);
}

void EncoderStage::schedule_step() {
  if (step_scheduled_) return;
  step_scheduled_ = true;
  send(this, StepAtom::value);
}

void EncoderStage::publish_load() {
  if (!engine_) return;
  const engine::PrefillLoad load = engine_->load();
  board_->encoder_requests = static_cast<int64_t>(works_.size());
  board_->encoder_queued_tokens = load.queued_tokens;
  board_->encoder_free_blocks = load.free_blocks;
}

}  // namespace cedar::actors
