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

using monitoring::MetricId;

namespace {

int64_t prompt_tokens(const GenerateRequest& request) {
  return static_cast<int64_t>(request.decode.prompt.size());
}

EncoderChoice choice_of(const EncoderEntry& stage) { return {stage.actor, stage.endpoint}; }
DecoderChoice choice_of(const DecoderEntry& stage) { return {stage.actor, stage.endpoint}; }

}  // namespace

Router::Router(caf::actor_config& config, RouterOptions options, std::shared_ptr<LoadBoard> board)
    : typed_event_based_actor(config), options_(options), board_(std::move(board)) {}

Router::behavior_type Router::make_behavior() {
  set_down_handler([this](caf::down_msg& down) { on_down(down); });
  encoder_grace_ = decoder_grace_ = Clock::now() + options_.stage_grace;
  publish();
  next_tick_ = Clock::now() + options_.tick;
  delayed_send(this, options_.tick, TickAtom::value);
  return {
      [this](SubmitRequest& message) { submit(std::move(message)); },
      [this](const CancelRequest& message) { cancel(message.id); },
      [this](const EncoderFree& message) {
        const auto running = running_.find(message.id);
        if (running == running_.end()) return;
        release_encoder(running->second);
        start_waiting();
      },
      [this](const ReplaceEncoder& message) { return replace_encoder(message); },
      [this](const ReplaceDecoder& message) { return replace_decoder(message); },
      [this](TickAtom) { sweep(); },
      [this](DrainAtom, bool end_sessions) { return drain(end_sessions); },
      [this](const NodeJoined& message) { node_joined(message.node); },
      [this](const NodeLeft& message) { node_left(message); },
      [this](const NodeReport& message) {
        count_engram(message);
        stages_.report(message) ? stages_changed(false) : publish();
      },
  };
}

void Router::on_exit() {
  const Error stops = make_error(Errc::unavailable, "the server stops");
  fail_waiting(stops);
  for (auto& [id, running] : running_) running.sink->fail(stops);
  running_.clear();
  for (Replacement& replacement : replacements_) {
    if (replacement.encoder) replacement.encoder->deliver(to_caf(stops));
    if (replacement.decoder) replacement.decoder->deliver(to_caf(stops));
  }
  replacements_.clear();
  stages_.clear();
  draining_ = true;
  publish();
}

// --- admission -------------------------------------------------------------------------------------------

Need Router::encoder_need(const GenerateRequest& request) const {
  const int64_t tokens = prompt_tokens(request);
  const int64_t block_tokens = std::max<int64_t>(stages_.largest_encoder().block_tokens, 1);
  return {ceil_div(tokens, block_tokens), tokens};
}

Need Router::decoder_need(const GenerateRequest& request) const {
  const int64_t block_tokens = std::max<int64_t>(stages_.largest_decoder().block_tokens, 1);
  return {ceil_div(prompt_tokens(request) + request.decode.max_new_tokens, block_tokens), 0};
}

EncoderEntry* Router::choose_encoder(const GenerateRequest& request, const caf::actor_addr& avoid) {
  const int64_t prefix = options_.affinity_blocks * stages_.largest_encoder().block_tokens;
  return stages_.choose_encoder(encoder_need(request), prefix_hash(request.decode.prompt, prefix),
                                prefix, avoid);
}

CacheChoice Router::choose_cache(const GenerateRequest& request,
                                 const EncoderEntry& encoder) const {
  const int64_t block_tokens = encoder.capacity.block_tokens;
  if (encoder.fingerprint.empty() || block_tokens <= 0) return {};
  // By the first block, which all turns of a conversation share.
  return {stages_.choose_cache(prefix_hash(request.decode.prompt, block_tokens)),
          encoder.fingerprint, block_tokens};
}

void Router::submit(SubmitRequest message) {
  const GenerateRequest& request = *message.request;
  const auto now = Clock::now();
  if (draining_) return reject(*message.sink, make_error(Errc::unavailable, "the server stops"));
  if (const char* kind = missing(now)) {
    return reject(*message.sink,
                  make_error(Errc::unavailable, std::string("the ") + kind + " is missing"));
  }
  if (const Status fits = check_fits(request); !fits) {
    return reject(*message.sink, fits.error());
  }
  Waiting waiting{std::move(message), now + request.deadline, now,
                  options_.requests->add(request.decode.id, prompt_tokens(request), now)};
  if (waiting_.empty() && try_start(waiting)) return publish();
  if (static_cast<int64_t>(waiting_.size()) < options_.max_queued) {
    const auto place = std::upper_bound(waiting_.begin(), waiting_.end(), request.priority,
                                        [](int32_t priority, const Waiting& other) {
                                          return priority < other.message.request->priority;
                                        });
    const int64_t position = place - waiting_.begin();
    if (waiting_.empty()) let_in_ = now;
    waiting.message.sink->event(QueuedEvent{position});
    waiting_.insert(place, std::move(waiting));
  } else {
    reject(
        *waiting.message.sink,
        make_error(Errc::overloaded, "the queue is full: " + std::to_string(options_.max_queued) +
                                         " requests wait already"));
  }
  publish();
}

Status Router::check_fits(const GenerateRequest& request) const {
  const auto too_long = [](const char* stage, int64_t need, int64_t have) {
    return make_error(Errc::context_too_long, "the request needs " + std::to_string(need) +
                                                  " KV blocks, the " + stage + " has " +
                                                  std::to_string(have));
  };
  // A kind of stage that is missing for a moment may come back larger or smaller.
  const int64_t read = encoder_need(request).blocks;
  const int64_t encoder = stages_.largest_encoder().blocks;
  if (stages_.has_encoder() && read > encoder) return too_long("encoder", read, encoder);
  const int64_t write = decoder_need(request).blocks;
  const int64_t decoder = stages_.largest_decoder().blocks;
  if (stages_.has_decoder() && write > decoder) return too_long("decoder", write, decoder);
  return {};
}

bool Router::try_start(const Waiting& waiting) {
  const auto& request = waiting.message.request;
  EncoderEntry* const encoder = choose_encoder(*request);
  DecoderEntry* const decoder = stages_.choose_decoder(decoder_need(*request));
  if (encoder == nullptr || decoder == nullptr) return false;
  const RequestId id = request->decode.id;
  Running running;
  running.request = request;
  running.sink = waiting.message.sink;
  running.deadline = waiting.deadline;
  promise_encoder(running, *encoder);
  promise_decoder(running, *decoder);
  running.session = spawn<Session, caf::monitored>(
      SessionSetup{request, waiting.message.sink, waiting.deadline, choice_of(*encoder),
                   choice_of(*decoder), caf::actor_cast<RouterActor>(this),
                   options_.max_replacements, choose_cache(*request, *encoder), options_.trace,
                   waiting.arrival, options_.metrics, waiting.entry});
  let_in_ = Clock::now();
  sessions_[running.session.address()] = id;
  running_.emplace(id, std::move(running));
  return true;
}

void Router::start_waiting() {
  // Who has begun goes before who has not.
  try_replacements();
  bool started = false;
  while (!waiting_.empty() && try_start(waiting_.front())) {
    waiting_.pop_front();
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
  options_.metrics->add(MetricId::cancellations, monitoring::Phase::queue);
  waiting->message.sink->finish(engine::FinishReason::cancelled);
  waiting_.erase(waiting);
  announce_queue();
  start_waiting();
}

void Router::promise_encoder(Running& running, const EncoderEntry& stage) {
  running.encoder = stage.actor.address();
  running.at_encoder = encoder_need(*running.request);
  stages_.promise(running.encoder, running.at_encoder);
}

void Router::promise_decoder(Running& running, const DecoderEntry& stage) {
  running.decoder = stage.actor.address();
  running.at_decoder = decoder_need(*running.request);
  stages_.promise(running.decoder, running.at_decoder);
}

void Router::release_encoder(Running& running) {
  if (running.encoder) stages_.release(std::exchange(running.encoder, {}), running.at_encoder);
}

void Router::release_decoder(Running& running) {
  if (running.decoder) stages_.release(std::exchange(running.decoder, {}), running.at_decoder);
}

// --- another stage for a session -------------------------------------------------------------------------

Router::EncoderPromise Router::replace_encoder(const ReplaceEncoder& message) {
  EncoderPromise promise = make_response_promise<EncoderPromise>();
  Replacement replacement{message.id, message.lost.address(), promise, {}};
  const auto running = running_.find(message.id);
  if (running != running_.end()) release_encoder(running->second);
  if (!try_replace(replacement)) replacements_.push_back(std::move(replacement));
  return promise;
}

Router::DecoderPromise Router::replace_decoder(const ReplaceDecoder& message) {
  DecoderPromise promise = make_response_promise<DecoderPromise>();
  Replacement replacement{message.id, message.lost.address(), {}, promise};
  const auto running = running_.find(message.id);
  if (running != running_.end()) release_decoder(running->second);
  if (!try_replace(replacement)) replacements_.push_back(std::move(replacement));
  return promise;
}

bool Router::try_replace(Replacement& replacement) {
  const auto fail = [&](Error error) {
    if (replacement.encoder) replacement.encoder->deliver(to_caf(error));
    if (replacement.decoder) replacement.decoder->deliver(to_caf(error));
    return true;
  };
  const auto entry = running_.find(replacement.id);
  if (entry == running_.end()) return fail(make_error(Errc::not_found, "the request has ended"));
  if (const char* kind = missing(Clock::now())) {
    return fail(make_error(Errc::unavailable,
                           std::string("the ") + kind + " was lost and there is no other"));
  }
  Running& running = entry->second;
  const GenerateRequest& request = *running.request;
  if (const Status fits = check_fits(request); !fits) return fail(fits.error());
  if (replacement.encoder) {
    EncoderEntry* const encoder = choose_encoder(request, replacement.lost);
    if (encoder == nullptr) return false;
    promise_encoder(running, *encoder);
    replacement.encoder->deliver(choice_of(*encoder));
    return true;
  }
  // The whole prompt is read again: the encoder that has room promised, or any other.
  release_encoder(running);
  EncoderEntry* const encoder = choose_encoder(request);
  DecoderEntry* const decoder = stages_.choose_decoder(decoder_need(request), replacement.lost);
  if (encoder == nullptr || decoder == nullptr) return false;
  promise_encoder(running, *encoder);
  promise_decoder(running, *decoder);
  replacement.decoder->deliver(choice_of(*encoder), choice_of(*decoder));
  return true;
}

void Router::try_replacements() {
  for (size_t i = 0; i < replacements_.size();) {
    if (try_replace(replacements_[i])) {
      replacements_.erase(replacements_.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

// --- time ------------------------------------------------------------------------------------------------

void Router::sweep() {
  const auto now = Clock::now();
  options_.metrics->observe(MetricId::router_mailbox_seconds,
                            std::max(0.0, std::chrono::duration<double>(now - next_tick_).count()));
  next_tick_ = now + options_.tick;
  delayed_send(this, options_.tick, TickAtom::value);
  for (auto& [id, running] : running_) {
    if (running.deadline > now || running.ending) continue;
    running.ending = true;
    send<caf::message_priority::high>(running.session, EndSession{Errc::deadline_exceeded});
  }
  const auto expired = [now](const Waiting& w) { return w.deadline <= now; };
  for (const Waiting& waiting : waiting_) {
    if (!expired(waiting)) continue;
    reject(*waiting.message.sink,
           make_error(Errc::deadline_exceeded, "no room before the request's deadline"));
  }
  const auto kept = std::remove_if(waiting_.begin(), waiting_.end(), expired);
  const bool some_expired = kept != waiting_.end();
  waiting_.erase(kept, waiting_.end());
  if (some_expired) announce_queue();
  if (const char* kind = missing(now); kind != nullptr && !waiting_.empty()) {
    fail_waiting(make_error(Errc::unavailable, std::string("the ") + kind + " is missing"));
  }
  if (some_expired || !replacements_.empty()) start_waiting();
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

// --- who comes and goes ----------------------------------------------------------------------------------

void Router::on_down(const caf::down_msg& down) {
  const auto session = sessions_.find(down.source);
  if (session != sessions_.end()) {
    session_down(session);
  } else if (stages_.drop(down.source)) {
    stages_changed(false);
  }
}

void Router::session_down(std::map<caf::actor_addr, RequestId>::iterator session) {
  const auto entry = running_.find(session->second);
  sessions_.erase(session);
  Running running = std::move(entry->second);
  running_.erase(entry);
  release_encoder(running);
  release_decoder(running);
  // Nothing happens here unless the session died before it could tell.
  running.sink->fail(make_error(Errc::internal, "the request's session died"));
  start_waiting();
}

void Router::node_joined(const NodeDescription& node) {
  for (const caf::actor_addr& stage : stages_.join(node)) {
    if (const auto actor = caf::actor_cast<caf::actor>(stage)) monitor(actor);
  }
  stages_changed(false);
}

/// A node that comes back begins at nothing; what its former life counted stays counted.
void Router::count_engram(const NodeReport& message) {
  if (!options_.sum_reports) return;
  auto& [generation, seen] = engram_seen_[message.name];
  if (generation < message.generation) seen = {};
  if (generation > message.generation) return;
  generation = message.generation;
  engram_ += message.load.engram - std::exchange(seen, message.load.engram);
}

void Router::node_left(const NodeLeft& message) {
  if (stages_.leave(message.name, message.generation) || message.for_good) {
    stages_changed(message.for_good);
  }
}

void Router::stages_changed(bool for_good) {
  const auto grace = for_good ? Clock::time_point{} : Clock::now() + options_.stage_grace;
  if (!stages_.has_encoder() && (for_good || encoder_grace_ == Clock::time_point::max())) {
    encoder_grace_ = grace;
  }
  if (!stages_.has_decoder() && (for_good || decoder_grace_ == Clock::time_point::max())) {
    decoder_grace_ = grace;
  }
  if (stages_.has_encoder()) encoder_grace_ = Clock::time_point::max();
  if (stages_.has_decoder()) decoder_grace_ = Clock::time_point::max();
  refuse_what_cannot_fit();
  start_waiting();
}

/// The stages may have become smaller while requests waited.
void Router::refuse_what_cannot_fit() {
  std::deque<Waiting> kept;
  for (Waiting& waiting : waiting_) {
    const Status fits = check_fits(*waiting.message.request);
    if (fits) kept.push_back(std::move(waiting));
    else reject(*waiting.message.sink, fits.error());
  }
  waiting_ = std::move(kept);
}

const char* Router::missing(Clock::time_point now) const {
  if (!stages_.has_encoder() && encoder_grace_ <= now) return "encoder";
  if (!stages_.has_decoder() && decoder_grace_ <= now) return "decoder";
  return nullptr;
}

void Router::fail_waiting(const Error& error) {
  for (const Waiting& waiting : waiting_) reject(*waiting.message.sink, error);
  waiting_.clear();
}

void Router::reject(OnceSink& sink, Error error) {
  options_.metrics->add(MetricId::rejections, error.code);
  sink.fail(std::move(error));
}

void Router::publish() {
  board_->ready = stages_up() && !draining_;
  board_->queued = static_cast<int64_t>(waiting_.size());
  board_->running = static_cast<int64_t>(running_.size());
  board_->stalled_since = waiting_.empty() ? Clock::time_point{} : let_in_;
  const StageCounts counts = stages_.counts();
  const auto nodes = [this](monitoring::NodeKind kind, size_t count) {
    options_.metrics->set(MetricId::cluster_nodes, kind, static_cast<double>(count));
  };
  nodes(monitoring::NodeKind::encoder, counts.encoders);
  nodes(monitoring::NodeKind::decoder, counts.decoders);
  nodes(monitoring::NodeKind::cache, counts.caches);
  if (!options_.sum_reports) return;
  const NodeLoad load = stages_.total_load();
  board_->encoder_requests = load.encoder_requests;
  board_->encoder_queued_tokens = load.encoder_queued_tokens;
  board_->encoder_free_blocks = load.encoder_free_blocks;
  board_->decoder_sequences = load.decoder_sequences;
  board_->decoder_free_blocks = load.decoder_free_blocks;
  board_->decoder_total_blocks = load.decoder_total_blocks;
  board_->set_engram(engram_);
}

}  // namespace cedar::actors
