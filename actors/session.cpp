#include "actors/session.h"

#include <algorithm>
#include <random>
#include <utility>

#include "actors/errors.h"
#include "core/log.h"

namespace cedar::actors {
namespace {

HandoffId new_handoff() {
  std::random_device random;
  return HandoffId{uint64_t{random()} << 32 | random()};
}

constexpr std::chrono::milliseconds kLookupTimeoutPerBlock{1};

using monitoring::MetricId;

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// Errors that say something about the stage, not about the request: another stage may do better.
bool stage_is_to_blame(const Error& error) {
  return error.code == Errc::unavailable || error.code == Errc::overloaded ||
         error.code == Errc::stale_generation;
}

}  // namespace

template <class Stage>
void Session::cancel_at(const Stage& stage) {
  if (stage) send<caf::message_priority::high>(stage, CancelWork{attempt_});
}

Session::Session(caf::actor_config& config, SessionSetup setup)
    : typed_event_based_actor(config), setup_(std::move(setup)), attempt_{new_handoff(), 1} {}

Session::behavior_type Session::make_behavior() {
  phase_begin_ = monitoring::Trace::Clock::now();
  if (setup_.trace) {
    setup_.trace->span("phase", "queue", id().value, setup_.arrival, phase_begin_);
  }
  setup_.metrics->observe(MetricId::phase_seconds, monitoring::Phase::queue,
                          seconds(phase_begin_ - setup_.arrival));
  list_stages();
  monitor(setup_.encoder.stage);
  monitor(setup_.decoder.stage);
  set_down_handler([this](caf::down_msg& down) { on_down(down); });
  if (setup_.cache.cache && setup_.cache.block_tokens > 0) {
    keys_.emplace(setup_.cache.fingerprint, *setup_.request, setup_.cache.block_tokens);
    use_cache_ = true;
  }
  reserve();
  return {
      [this](PrefillProgress& message) { on_progress(std::move(message)); },
      [this](const ReplayBegun& message) { on_replay(message); },
      [this](TokenBatch& message) { on_tokens(std::move(message)); },
      [this](const BlockWritten& message) { on_block_written(message); },
      [this](PullFailed& message) {
        if (message.attempt != attempt_) return;
        // It may have been the cache that could not be reached; nothing says so, and another try does without. That
        // happens once, and leaves the request its replacements.
        const bool counts = cached_blocks_ == 0;
        if (!counts) use_cache_ = false;
        replace_encoder(std::move(message.error), counts);
      },
      [this](StageFailed& message) { on_stage_failed(std::move(message)); },
      [this](const EndSession& message) {
        if (phase_ == Phase::done) return;
        if (message.code == Errc::cancelled) {
          setup_.metrics->add(MetricId::cancellations, label_of(phase_));
          abandon();
          finish(engine::FinishReason::cancelled);
        } else {
          fail(make_error(message.code, "the request's deadline passed"));
        }
      },
  };
}

void Session::enter(Phase phase) {
  static constexpr const char* kNames[] = {"reserve", "prefill", "hand-over", "replay",
                                           "decode",  "reroute", "done"};
  const auto now = monitoring::Trace::Clock::now();
  if (setup_.trace && phase != phase_) {
    const std::initializer_list<monitoring::TraceField> fields = {
        {"request", static_cast<int64_t>(id().value)},
        {"handoff", static_cast<int64_t>(attempt_.handoff.value)},
        {"attempt", attempt_.number}};
    const uint64_t line = id().value;
    setup_.trace->span("phase", kNames[static_cast<size_t>(phase_)], line, phase_begin_, now,
                       fields);
    if (phase == Phase::done) {
      setup_.trace->span("request", "request", line, setup_.arrival, now, fields);
    }
  }
  if (phase != phase_ && phase_ != Phase::done) {
    setup_.metrics->observe(MetricId::phase_seconds, label_of(phase_), seconds(now - phase_begin_));
    phase_begin_ = now;
  }
  phase_ = phase;
  if (setup_.entry && phase != Phase::done) setup_.entry->enter(label_of(phase), now);
}

monitoring::Phase Session::label_of(Phase phase) {
  using Label = monitoring::Phase;
  static constexpr Label kLabels[] = {Label::reserve, Label::prefill, Label::handover,
                                      Label::replay,  Label::decode,  Label::reroute};
  return kLabels[static_cast<size_t>(phase)];
}

void Session::list_stages() {
  if (setup_.entry) setup_.entry->set_stages(setup_.encoder.endpoint, setup_.decoder.endpoint);
}

void Session::on_exit() {
  destroy(setup_.encoder.stage);
  destroy(setup_.decoder.stage);
  destroy(setup_.router);
  destroy(setup_.cache.cache);
}

std::chrono::milliseconds Session::remaining() const {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      setup_.deadline - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

void Session::on_down(const caf::down_msg& down) {
  if (setup_.decoder.stage && down.source == setup_.decoder.stage.address()) {
    replace_decoder(make_error(Errc::unavailable, "the decoder stage went down"));
  } else if (setup_.encoder.stage && down.source == setup_.encoder.stage.address()) {
    // Afterwards all is offered: the decoder tells whether it could still fetch it.
    if (phase_ == Phase::reserving || phase_ == Phase::prefilling) {
      replace_encoder(make_error(Errc::unavailable, "the encoder stage went down"));
    }
  }
}

void Session::reserve() {
  enter(Phase::reserving);
  has_room_ = false;
  // The stage answers only when there is room.
  request(setup_.decoder.stage, remaining(),
          ReserveRoom{attempt_.handoff,
                      {setup_.request},
                      SessionActor{this},
                      setup_.encoder.endpoint,
                      remaining(),
                      keys_.has_value()})
      .then(
          [this](const RoomReserved& reply) {
            if (reply.id != attempt_.handoff) return;
            has_room_ = true;
            try_prefill();
          },
          [this, handoff = attempt_.handoff](const caf::error& error) {
            if (handoff == attempt_.handoff) on_no_room(error);
          });
  look_up();
}

void Session::on_no_room(const caf::error& error) {
  Error reason = from_caf(error);
  if (stage_is_to_blame(reason)) {
    replace_decoder(std::move(reason));
  } else {
    fail(std::move(reason));
  }
}

void Session::look_up() {
  release_hit();
  cached_blocks_ = disk_blocks_ = 0;
  // The last token is always computed.
  const int64_t blocks =
      keys_ && use_cache_
          ? std::min(keys_->blocks(), (tokens_to_read() - 1) / keys_->block_tokens())
          : 0;
  looked_up_ = blocks == 0;
  if (looked_up_) return try_prefill();
  request(setup_.cache.cache, setup_.lookup_timeout + blocks * kLookupTimeoutPerBlock,
          LookupPrefix{keys_->of(0, blocks), remaining()})
      .then(
          [this, attempt = attempt_](PrefixLease& hit) {
            if (attempt == attempt_ && !looked_up_) {
              setup_.metrics->add(MetricId::cache_questions, hit.blocks > 0
                                                                 ? monitoring::Lookup::hit
                                                                 : monitoring::Lookup::miss);
              return on_hit(std::move(hit));
            }
            if (hit.blocks > 0) send(setup_.cache.cache, ReleaseLease{hit.lease});
          },
          [this, attempt = attempt_](const caf::error&) {
            setup_.metrics->add(MetricId::cache_questions, monitoring::Lookup::failed);
            if (attempt == attempt_) on_hit({});
          });
}

void Session::on_hit(PrefixLease hit) {
  hit_ = std::move(hit);
  looked_up_ = true;
  try_prefill();
}

void Session::release_hit() {
  if (hit_.blocks > 0) send(setup_.cache.cache, ReleaseLease{hit_.lease});
  hit_ = {};
}

void Session::try_prefill() {
  if (phase_ == Phase::reserving && has_room_ && looked_up_) prefill();
}

void Session::prefill() {
  enter(Phase::prefilling);
  if (!resumed() && told_computed_ < 0) {
    told_computed_ = 0;
    setup_.sink->event(PrefillEvent{0, prompt_tokens()});
  }
  send(setup_.encoder.stage, BeginPrefill{attempt_,
                                          {setup_.request},
                                          SessionActor{this},
                                          remaining(),
                                          hit_.blocks,
                                          hit_.for_encoder,
                                          keys_ ? tokens_to_read() / keys_->block_tokens() : 0,
                                          hit_.windows_at,
                                          hit_.windows,
                                          keys_.has_value()});
}

void Session::on_progress(PrefillProgress progress) {
  if (progress.attempt != attempt_) {
    // Its cancellation has overtaken its begin.
    if (const auto stage = caf::actor_cast<EncoderStageActor>(current_sender())) {
      send(stage, CancelWork{progress.attempt});
    }
    return;
  }
  if (phase_ != Phase::prefilling) return;
  if (hit_.blocks > 0) {
    cached_blocks_ = progress.cached_blocks;
    if (cached_blocks_ == hit_.blocks) {
      disk_blocks_ = hit_.disk_blocks;
      send(setup_.decoder.stage, ImportBlocks{attempt_, 0, std::move(hit_.for_decoder)});
      hit_ = {};
    } else {
      // The encoder computes instead, and offers what it computes.
      cached_blocks_ = 0;
      release_hit();
    }
    progress.computed = std::max(progress.computed, cached_tokens());
  }
  // The decoder first: it is what the client waits for.
  if (!progress.blocks.empty()) {
    send(setup_.decoder.stage,
         ImportBlocks{attempt_, progress.first_block, std::move(progress.blocks)});
  }
  if (progress.finished) {
    enter(Phase::handing_over);
    send(setup_.decoder.stage, TakeOver{attempt_, std::move(progress.state)});
    send(setup_.router, EncoderFree{id()});
  }
  if (keys_ && !progress.for_cache.empty()) {
    const int64_t whole = progress.computed / keys_->block_tokens();
    keep(progress.first_block, whole - progress.first_block, std::move(progress.for_cache));
  }
  if (keys_ && progress.windows_at > 0) keep_windows(progress.windows_at, progress.windows);
  if (setup_.entry) setup_.entry->read(std::min(progress.computed, prompt_tokens()));
  if (resumed()) return;  // the client has heard of its prompt
  if (progress.computed > told_computed_) {
    told_computed_ = progress.computed;
    setup_.sink->event(PrefillEvent{progress.computed, prompt_tokens()});
  }
  if (progress.finished && !std::exchange(told_read_, true)) {
    const int64_t block = keys_ ? keys_->block_tokens() : 0;
    setup_.sink->event(PromptReadEvent{prompt_tokens(), std::min(cached_tokens(), prompt_tokens()),
                                       std::min(disk_blocks_ * block, prompt_tokens()),
                                       progress.resume, progress.replayed});
  }
}

void Session::on_replay(const ReplayBegun& message) {
  if (message.id != attempt_.handoff || phase_ != Phase::handing_over) return;
  enter(Phase::replaying);
  if (!resumed()) setup_.sink->event(ReplayEvent{});
}

void Session::on_tokens(TokenBatch batch) {
  if (batch.id != attempt_.handoff || batch.tokens.empty()) return;
  if (phase_ == Phase::replaying) enter(Phase::decoding);
  if (phase_ != Phase::decoding) return;
  const engine::TokenEvent last = batch.tokens.back();
  const bool failed = last.finish == engine::FinishReason::failed;
  if (failed) batch.tokens.pop_back();  // it carries the error, no token
  for (engine::TokenEvent& token : batch.tokens) {
    token.id = id();  // not the stage's own number
    emitted_.push_back(token.token.token);
  }
  if (keys_) {
    std::vector<TokenId> tokens;
    for (const engine::TokenEvent& token : batch.tokens) tokens.push_back(token.token.token);
    keys_->append(tokens);
  }
  if (setup_.entry) setup_.entry->wrote(static_cast<int64_t>(batch.tokens.size()));
  if (!batch.tokens.empty()) setup_.sink->event(TokensEvent{std::move(batch.tokens)});
  if (failed) {
    fail(last.error.value_or(make_error(Errc::internal, "the decoder gave no reason")));
  } else if (last.finish != engine::FinishReason::none) {
    finish(last.finish);
  }
}

void Session::on_block_written(const BlockWritten& message) {
  if (message.id == attempt_.handoff) keep(message.index, 1, message.block);
}

void Session::keep(int64_t first, int64_t count, Offer blocks) {
  if (!keys_ || first < 0 || count < 1 || first + count > keys_->blocks()) return;
  send(setup_.cache.cache,
       StoreBlocks{first, keys_->chain(first, first + count), std::move(blocks)});
}

void Session::keep_windows(int64_t at, Offer windows) {
  const int64_t block = at / keys_->block_tokens();
  if (block < 1 || block > keys_->blocks()) return;
  send(setup_.cache.cache,
       StoreWindows{keys_->of(block - 1, block).front(), at, std::move(windows)});
}

void Session::on_stage_failed(StageFailed message) {
  if (message.attempt.handoff != attempt_.handoff) return;
  const bool by_decoder = message.attempt.number == 0;
  if (!by_decoder && message.attempt != attempt_) return;
  if (!stage_is_to_blame(message.error)) {
    fail(std::move(message.error));
  } else if (by_decoder) {
    replace_decoder(std::move(message.error));
  } else {
    replace_encoder(std::move(message.error));
  }
}

bool Session::may_replace(const Error& reason, bool counts) {
  if (phase_ == Phase::done) return false;  // what comes between the end and the exit
  if (counts && ++replacements_ > setup_.max_replacements) {
    fail(reason);
    return false;
  }
  log::warn("session", "replacing a stage",
            {{"request", id().value}, {"replacement", replacements_}, {"why", reason.message()}});
  return true;
}

void Session::replace_encoder(Error reason, bool counts) {
  if (!may_replace(reason, counts)) return;
  setup_.metrics->add(MetricId::stage_replacements, monitoring::Stage::encoder);
  cancel_at(setup_.encoder.stage);
  ++attempt_.number;
  enter(Phase::rerouting);
  request(setup_.router, remaining(), ReplaceEncoder{id(), std::exchange(setup_.encoder.stage, {})})
      .then(
          [this, attempt = attempt_](EncoderChoice& choice) {
            if (attempt != attempt_ || phase_ != Phase::rerouting) return;
            setup_.encoder = std::move(choice);
            list_stages();
            monitor(setup_.encoder.stage);
            enter(Phase::reserving);
            look_up();
          },
          [this, attempt = attempt_, reason](const caf::error&) {
            if (attempt == attempt_ && phase_ == Phase::rerouting) fail(reason);
          });
}

void Session::replace_decoder(Error reason) {
  if (!may_replace(reason)) return;
  setup_.metrics->add(MetricId::stage_replacements, monitoring::Stage::decoder);
  abandon();
  attempt_ = {new_handoff(), 1};
  enter(Phase::rerouting);
  if (!emitted_.empty()) {
    // The old request may be in use by a stage.
    auto resumed = std::make_shared<GenerateRequest>(*setup_.request);
    resumed->decode.emitted.insert(resumed->decode.emitted.end(), emitted_.begin(), emitted_.end());
    emitted_.clear();
    setup_.request = std::move(resumed);
  }
  request(setup_.router, remaining(), ReplaceDecoder{id(), std::exchange(setup_.decoder.stage, {})})
      .then(
          [this, attempt = attempt_](EncoderChoice& encoder, DecoderChoice& decoder) {
            if (attempt != attempt_ || phase_ != Phase::rerouting) return;
            setup_.encoder = std::move(encoder);
            setup_.decoder = std::move(decoder);
            list_stages();
            monitor(setup_.encoder.stage);
            monitor(setup_.decoder.stage);
            reserve();
          },
          [this, attempt = attempt_, reason](const caf::error&) {
            if (attempt == attempt_ && phase_ == Phase::rerouting) fail(reason);
          });
}

void Session::finish(engine::FinishReason reason) {
  if (phase_ == Phase::done) return;
  enter(Phase::done);
  setup_.sink->finish(reason);
  quit();
}

void Session::fail(Error error) {
  if (phase_ == Phase::done) return;
  setup_.metrics->add(MetricId::failures, error.code);
  abandon();
  enter(Phase::done);
  setup_.sink->fail(std::move(error));
  quit();
}

void Session::abandon() {
  cancel_at(setup_.encoder.stage);
  cancel_at(setup_.decoder.stage);
}

}  // namespace cedar::actors
