#include "actors/session.h"

#include <algorithm>
#include <random>
#include <utility>

#include "actors/errors.h"

namespace cedar::actors {
namespace {

HandoffId new_handoff() {
  std::random_device random;
  return HandoffId{uint64_t{random()} << 32 | random()};
}

}  // namespace

Session::Session(caf::actor_config& config, SessionSetup setup)
    : typed_event_based_actor(config), setup_(std::move(setup)), attempt_{new_handoff(), 1} {}

Session::behavior_type Session::make_behavior() {
  monitor(setup_.encoder.stage);
  monitor(setup_.decoder.stage);
  set_down_handler([this](caf::down_msg& down) {
    const bool is_encoder = down.source == setup_.encoder.stage.address();
    // Once it has handed over, the encoder is no longer needed.
    if (is_encoder && phase_ > Phase::prefilling) return;
    fail(make_error(Errc::unavailable,
                    is_encoder ? "the encoder stage went down" : "the decoder stage went down"));
  });
  reserve();
  return {
      [this](PrefillProgress& progress) { on_progress(std::move(progress)); },
      [this](const ReplayBegun& message) {
        if (message.id == attempt_.handoff) on_replay();
      },
      [this](TokenBatch& batch) {
        if (batch.id == attempt_.handoff) on_tokens(std::move(batch));
      },
      [this](PullFailed& message) {
        if (message.attempt == attempt_) fail(std::move(message.error));
      },
      [this](StageFailed& message) {
        if (message.attempt.handoff != attempt_.handoff) return;
        if (message.attempt.number == 0 || message.attempt == attempt_) {
          fail(std::move(message.error));
        }
      },
      [this](const EndSession& message) {
        if (message.code == Errc::cancelled) {
          abandon();
          finish(engine::FinishReason::cancelled);
        } else {
          fail(make_error(message.code, "the request's deadline passed"));
        }
      },
  };
}

void Session::on_exit() {
  destroy(setup_.encoder.stage);
  destroy(setup_.decoder.stage);
  destroy(setup_.router);
}

std::chrono::milliseconds Session::remaining() const {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      setup_.deadline - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

void Session::reserve() {
  // The stage answers only when there is room.
  request(setup_.decoder.stage, remaining(),
          ReserveRoom{attempt_.handoff,
                      {setup_.request},
                      SessionActor{this},
                      setup_.encoder.endpoint,
                      remaining()})
      .then([this](const RoomReserved&) { prefill(); },
            [this](const caf::error& error) { fail(from_caf(error)); });
}

void Session::prefill() {
  if (phase_ != Phase::reserving) return;
  phase_ = Phase::prefilling;
  setup_.sink->event(PrefillEvent{0, static_cast<int64_t>(setup_.request->decode.prompt.size())});
  send(setup_.encoder.stage,
       BeginPrefill{attempt_, {setup_.request}, SessionActor{this}, remaining()});
}

void Session::on_progress(PrefillProgress progress) {
  if (progress.attempt != attempt_) return;
  const auto total = static_cast<int64_t>(setup_.request->decode.prompt.size());
  switch (phase_) {
    case Phase::prefilling:
      // The decoder first: it is what the client waits for.
      if (!progress.blocks.empty()) {
        send(setup_.decoder.stage,
             ImportBlocks{attempt_, progress.first_block, std::move(progress.blocks)});
      }
      if (progress.finished) {
        phase_ = Phase::handing_over;
        send(setup_.decoder.stage, TakeOver{attempt_, std::move(progress.state)});
      }
      setup_.sink->event(PrefillEvent{progress.computed, total});
      if (progress.finished) {
        setup_.sink->event(PromptReadEvent{total, 0});
        send(setup_.router, EncoderFree{id()});
      }
      return;
    case Phase::reserving:
    case Phase::handing_over:
    case Phase::decoding:
    case Phase::done: return;
  }
}

void Session::on_replay() {
  if (phase_ == Phase::handing_over) setup_.sink->event(ReplayEvent{});
}

void Session::on_tokens(TokenBatch batch) {
  switch (phase_) {
    case Phase::handing_over: phase_ = Phase::decoding; [[fallthrough]];
    case Phase::decoding: {
      const engine::TokenEvent last = batch.tokens.back();
      if (last.finish == engine::FinishReason::failed) {
        batch.tokens.pop_back();  // it carries the error, no token
      }
      for (engine::TokenEvent& token : batch.tokens) token.id = id();  // not the stage's own number
      if (!batch.tokens.empty()) setup_.sink->event(TokensEvent{std::move(batch.tokens)});
      if (last.finish == engine::FinishReason::failed) {
        fail(last.error.value_or(make_error(Errc::internal, "the decoder gave no reason")));
      } else if (last.finish != engine::FinishReason::none) {
        finish(last.finish);
      }
      return;
    }
    case Phase::reserving:
    case Phase::prefilling:
    case Phase::done: return;
  }
}

void Session::finish(engine::FinishReason reason) {
  if (phase_ == Phase::done) return;
  phase_ = Phase::done;
  setup_.sink->finish(reason);
  quit();
}

void Session::fail(Error error) {
  if (phase_ == Phase::done) return;
  abandon();
  phase_ = Phase::done;
  setup_.sink->fail(std::move(error));
  quit();
}

void Session::abandon() {
  send<caf::message_priority::high>(setup_.encoder.stage, CancelWork{attempt_});
  send<caf::message_priority::high>(setup_.decoder.stage, CancelWork{attempt_});
}

}  // namespace cedar::actors
