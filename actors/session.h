#pragma once
// One request from its reservation to its last token, and the hub of its stages: what one of them says to the other goes
// through here. Watches both stages and is watched by them: whoever dies first, the other side frees what the request
// held.

#include <caf/typed_event_based_actor.hpp>

#include <chrono>
#include <memory>

#include "actors/messages.h"

namespace cedar::actors {

struct SessionSetup {
  std::shared_ptr<const GenerateRequest> request;
  std::shared_ptr<OnceSink> sink;
  std::chrono::steady_clock::time_point deadline;  // the router ends the session then
  EncoderChoice encoder;
  DecoderChoice decoder;
  RouterActor router;
};

class Session final : public SessionActor::base {
 public:
  Session(caf::actor_config& config, SessionSetup setup);

  behavior_type make_behavior() override;
  void on_exit() override;
  const char* name() const override { return "cedar.session"; }

 private:
  /// reserving: the decoder holds room.  prefilling: the encoder reads, blocks flow to the decoder.
  /// handing_over: the decoder has the hand-off and replays.  decoding: tokens arrive.  done: told the sink.
  enum class Phase : uint8_t { reserving, prefilling, handing_over, decoding, done };

  RequestId id() const { return setup_.request->decode.id; }
  std::chrono::milliseconds remaining() const;
  void reserve();
  void prefill();
  void on_progress(PrefillProgress progress);
  void on_replay();
  void on_tokens(TokenBatch batch);
  void finish(engine::FinishReason reason);
  void fail(Error error);
  /// Both stages stop within one step; then the session ends.
  void abandon();

  SessionSetup setup_;
  Attempt attempt_;  // the current one; what speaks of another is late
  Phase phase_ = Phase::reserving;
};

}  // namespace cedar::actors
