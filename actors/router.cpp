#include "actors/router.h"

#include <caf/send.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include "actors/errors.h"
#include "actors/session.h"
#include "core/log.h"
#include "core/units.h"

namespace cedar::actors {
namespace {

int64_t prompt_tokens(const GenerateRequest& request) {
  return static_cast<int64_t>(request.decode.prompt.size());
}

int64_t encoder_blocks(const GenerateRequest& request, const StageCapacity& capacity) {
  return ceil_div(prompt_tokens(request), capacity.block_tokens);
}

int64_t decoder_blocks(const GenerateRequest& request, const StageCapacity& capacity) {
  return ceil_div(prompt_tokens(request) + request.decode.max_new_tokens, capacity.block_tokens);
}

/// With high priority: an ordinary exit message waits behind the stage's backlog.
template <class Handle>
void end_stage(Handle& stage) {
  if (!stage) return;
  caf::anon_send<caf::message_priority::high>(
      caf::actor_cast<caf::actor>(stage),
      caf::exit_msg{caf::actor_addr{}, caf::exit_reason::user_shutdown});
  destroy(stage);
}

}  // namespace

Router::Router(caf::actor_config& config, RouterOptions options, StageSpawners spawners,
               std::shared_ptr<LoadBoard> board)
    : typed_event_based_actor(config),
      options_(options),
      spawners_(std::move(spawners)),
      board_(std::move(board)) {}

Router::behavior_type Router::make_behavior() {
  set_down_handler([this](caf::down_msg& down) { on_down(down); });
  encoder_.actor = spawners_.encoder(system());
  decoder_.actor = spawners_.decoder(system());
  monitor(encoder_.actor);
  monitor(decoder_.actor);
  publish();
  delayed_send(this, options_.tick, TickAtom::value);
  return {
      [this](SubmitRequest& message) { submit(std::move(message)); },
      [this](const CancelRequest& message) { cancel(message.id); },
      [this](const EncoderFree& message) { encoder_free(message.id); },
      [](const ReplaceEncoder&) -> caf::result<EncoderChoice> {
        return to_caf(make_error(Errc::unavailable, "there is no other encoder"));
      },
      [](const ReplaceDecoder&) -> caf::result<EncoderChoice, DecoderChoice> {
        return to_caf(make_error(Errc::unavailable, "there is no other decoder"));
      },
      [this](TickAtom) { sweep_deadlines(); },
      [this](DrainAtom, bool end_sessions) { return drain(end_sessions); },
  };
}

void Router::on_exit() {
  fail_waiting(make_error(Errc::unavailable, "the server stops"));
  for (auto& [id, running] : running_) {
    running.sink->fail(make_error(Errc::unavailable, "the server stops"));
  }
  running_.clear();
  end_stage(encoder_.actor);
  end_stage(decoder_.actor);
  spawners_ = {};
  draining_ = true;
  publish();
}

void Router::submit(SubmitRequest message) {
  const GenerateRequest& request = *message.request;
  if (draining_) return message.sink->fail(make_error(Errc::unavailable, "the server stops"));
  if (!stages_up()) {
    return message.sink->fail(make_error(
        Errc::unavailable, encoder_.actor ? "the decoder is missing" : "the encoder is missing"));
  }
  if (const Status fits = check_fits(request); !fits) return message.sink->fail(fits.error());
  Waiting waiting{std::move(message), Clock::now() + request.deadline};
  if (waiting_.empty() && has_room(request)) {
    start_session(std::move(waiting));
  } else if (static_cast<int64_t>(waiting_.size()) < options_.max_queued) {
    const auto place = std::upper_bound(waiting_.begin(), waiting_.end(), request.priority,
                                        [](int32_t priority, const Waiting& other) {
                                          return priority < other.message.request->priority;
                                        });
    const int64_t position = place - waiting_.begin();
    waiting.message.sink->event(QueuedEvent{position});
    waiting_.insert(place, std::move(waiting));
  } else {
    waiting.message.sink->fail(make_error(
        Errc::overloaded,
        "the queue is full: " + std::to_string(options_.max_queued) + " requests wait already"));
  }
  publish();
}

Status Router::check_fits(const GenerateRequest& request) const {
  const auto too_long = [](const char* stage, int64_t need, int64_t have) {
    return make_error(Errc::context_too_long, "the request needs " + std::to_string(need) +
                                                  " KV blocks, the " + stage + " has " +
                                                  std::to_string(have));
  };
  const int64_t read = encoder_blocks(request, options_.encoder);
  if (read > options_.encoder.blocks) return too_long("encoder", read, options_.encoder.blocks);
  const int64_t write = decoder_blocks(request, options_.decoder);
  if (write > options_.decoder.blocks) return too_long("decoder", write, options_.decoder.blocks);
  return {};
}

bool Router::has_room(const GenerateRequest& request) const {
  return encoder_.ledger.fits(options_.encoder, encoder_blocks(request, options_.encoder)) &&
         decoder_.ledger.fits(options_.decoder, decoder_blocks(request, options_.decoder));
}

void Router::start_session(Waiting waiting) {
  const auto request = waiting.message.request;
  const RequestId id = request->decode.id;
  Running running;
  running.sink = waiting.message.sink;
  running.deadline = waiting.deadline;
  running.encoder_blocks = encoder_blocks(*request, options_.encoder);
  running.decoder_blocks = decoder_blocks(*request, options_.decoder);
  encoder_.ledger.sequences += 1;
  encoder_.ledger.blocks += running.encoder_blocks;
  decoder_.ledger.sequences += 1;
  decoder_.ledger.blocks += running.decoder_blocks;
  running.session =
      spawn<Session, caf::monitored>(SessionSetup{request,
                                                  waiting.message.sink,
                                                  waiting.deadline,
                                                  {encoder_.actor, spawners_.endpoint},
                                                  {decoder_.actor, spawners_.endpoint},
                                                  RouterActor{this}});
  sessions_[running.session.address()] = id;
  running_.emplace(id, std::move(running));
}

void Router::start_waiting() {
  bool started = false;
  while (!waiting_.empty() && stages_up() && has_room(*waiting_.front().message.request)) {
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    start_session(std::move(next));
    started = true;
  }
  if (started) announce_queue();
  publish();
}

void Router::announce_queue() {
  int64_t position = 0;
  for (const Waiting& waiting : waiting_) waiting.message.sink->event(QueuedEvent{position++});
}

void Router::cancel(RequestId id) {
  const auto running = running_.find(id);
  if (running != running_.end()) {
    running->second.ending = true;
    send<caf::message_priority::high>(running->second.session, EndSession{Errc::cancelled});
    return;
  }
  const auto waiting = std::find_if(waiting_.begin(), waiting_.end(), [id](const Waiting& w) {
    return w.message.request->decode.id == id;
  });
  if (waiting == waiting_.end()) return;
  waiting->message.sink->finish(engine::FinishReason::cancelled);
  waiting_.erase(waiting);
  announce_queue();
  start_waiting();
}

void Router::encoder_free(RequestId id) {
  const auto running = running_.find(id);
  if (running == running_.end() || !running->second.in_encoder) return;
  running->second.in_encoder = false;
  encoder_.ledger.sequences -= 1;
  encoder_.ledger.blocks -= running->second.encoder_blocks;
  start_waiting();
}

void Router::sweep_deadlines() {
  delayed_send(this, options_.tick, TickAtom::value);
  const auto now = Clock::now();
  for (auto& [id, running] : running_) {
    if (running.deadline > now || running.ending) continue;
    running.ending = true;
    send<caf::message_priority::high>(running.session, EndSession{Errc::deadline_exceeded});
  }
  const auto expired = [now](const Waiting& w) { return w.deadline <= now; };
  for (const Waiting& waiting : waiting_) {
    if (!expired(waiting)) continue;
    waiting.message.sink->fail(
        make_error(Errc::deadline_exceeded, "no room before the request's deadline"));
  }
  const auto kept = std::remove_if(waiting_.begin(), waiting_.end(), expired);
  if (kept != waiting_.end()) {
    waiting_.erase(kept, waiting_.end());
    announce_queue();
    start_waiting();
  }
}

int64_t Router::drain(bool end_sessions) {
  draining_ = true;
  if (end_sessions) {
    fail_waiting(make_error(Errc::unavailable, "the server stops"));
    for (auto& [id, running] : running_) {
      if (std::exchange(running.ending, true)) continue;
      send<caf::message_priority::high>(running.session, EndSession{Errc::cancelled});
    }
  }
  publish();
  return static_cast<int64_t>(running_.size() + waiting_.size());
}

void Router::on_down(const caf::down_msg& down) {
  const auto session = sessions_.find(down.source);
  if (session != sessions_.end()) {
    session_down(session);
  } else if (encoder_.actor && down.source == encoder_.actor.address()) {
    stage_down(encoder_, "encoder", spawners_.encoder);
  } else if (decoder_.actor && down.source == decoder_.actor.address()) {
    stage_down(decoder_, "decoder", spawners_.decoder);
  }
}

void Router::session_down(std::map<caf::actor_addr, RequestId>::iterator session) {
  const auto entry = running_.find(session->second);
  sessions_.erase(session);
  Running running = std::move(entry->second);
  running_.erase(entry);
  if (running.in_encoder) {
    encoder_.ledger.sequences -= 1;
    encoder_.ledger.blocks -= running.encoder_blocks;
  }
  decoder_.ledger.sequences -= 1;
  decoder_.ledger.blocks -= running.decoder_blocks;
  // Nothing happens here unless the session died before it could tell.
  running.sink->fail(make_error(Errc::internal, "the request's session died"));
  start_waiting();
}

template <class Handle>
void Router::stage_down(Stage<Handle>& stage, const char* which,
                        const std::function<Handle(caf::actor_system&)>& spawn_again) {
  destroy(stage.actor);
  const auto now = Clock::now();
  auto& restarts = stage.restarts;
  restarts.erase(std::remove_if(restarts.begin(), restarts.end(),
                                [&](auto at) { return at + options_.restart_window < now; }),
                 restarts.end());
  if (!draining_ && static_cast<int64_t>(restarts.size()) < options_.max_restarts) {
    restarts.push_back(now);
    log::warn("router", "stage went down, starting it again", {{"stage", which}});
    stage.actor = spawn_again(system());
    monitor(stage.actor);
  } else {
    log::error("router", "stage went down and stays down", {{"stage", which}});
    fail_waiting(make_error(Errc::unavailable, std::string("the ") + which + " is missing"));
  }
  publish();
}

void Router::fail_waiting(const Error& error) {
  for (const Waiting& waiting : waiting_) waiting.message.sink->fail(error);
  waiting_.clear();
}

void Router::publish() {
  board_->ready = stages_up() && !draining_;
  board_->queued = static_cast<int64_t>(waiting_.size());
  board_->running = static_cast<int64_t>(running_.size());
}

}  // namespace cedar::actors
