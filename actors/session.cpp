#include "actors/session.h"

#include <utility>

#include "actors/errors.h"

namespace cedar::actors {

Session::Session(caf::actor_config& config, SessionSetup setup)
    : typed_event_based_actor(config), setup_(std::move(setup)) {}

Session::behavior_type Session::make_behavior() {
  monitor(setup_.encoder);
  monitor(setup_.decoder);
  set_down_handler([this](caf::down_msg& down) {
    const bool is_encoder = down.source == setup_.encoder.address();
    // Once it has handed over, the encoder is no longer needed.
    if (is_encoder && phase_ > Phase::prefilling) return;
    fail(make_error(Errc::unavailable,
                    is_encoder ? "the encoder stage went down" : "the decoder stage went down"));
  });
  reserve();
  return {
      [this](const PrefillProgress& progress) { on_progress(progress); },
      [this](const ReplayBegun&) { on_replay(); },
      [this](TokenBatch& batch) { on_tokens(std::move(batch)); },
      [this](StageFailed& message) { fail(std::move(message.error)); },
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
  destroy(setup_.encoder);
  destroy(setup_.decoder);
  destroy(setup_.router);
}

void Session::reserve() {
  // The stage answers only when there is room; the router's deadline sweep bounds the wait.
  request(setup_.decoder, caf::infinite, ReserveRoom{setup_.request, SessionActor{this}})
      .then([this](const RoomReserved&) { prefill(); },
            [this](const caf::error& error) { fail(from_caf(error)); });
}

void Session::prefill() {
  if (phase_ != Phase::reserving) return;
  phase_ = Phase::prefilling;
  setup_.sink->event(PrefillEvent{0, static_cast<int64_t>(setup_.request->decode.prompt.size())});
  send(setup_.encoder, BeginPrefill{setup_.request, SessionActor{this}, setup_.decoder});
}

void Session::on_progress(const PrefillProgress& progress) {
  const auto total = static_cast<int64_t>(setup_.request->decode.prompt.size());
  switch (phase_) {
    case Phase::prefilling:
      setup_.sink->event(PrefillEvent{progress.computed, total});
      if (progress.finished) {
        phase_ = Phase::handing_over;
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

/// The decoder can be faster than the encoder's last word: both came from different mailboxes.
void Session::end_prefill() {
  if (phase_ != Phase::prefilling) return;
  on_progress({static_cast<int64_t>(setup_.request->decode.prompt.size()), true});
}

void Session::on_replay() {
  end_prefill();
  if (phase_ == Phase::handing_over) setup_.sink->event(ReplayEvent{});
}

void Session::on_tokens(TokenBatch batch) {
  end_prefill();
  switch (phase_) {
    case Phase::handing_over: phase_ = Phase::decoding; [[fallthrough]];
    case Phase::decoding: {
      const engine::TokenEvent last = batch.tokens.back();
      if (last.finish == engine::FinishReason::failed) {
        batch.tokens.pop_back();  // it carries the error, no token
      }
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
  send<caf::message_priority::high>(setup_.encoder, CancelWork{id()});
  send<caf::message_priority::high>(setup_.decoder, CancelWork{id()});
}

}  // namespace cedar::actors
