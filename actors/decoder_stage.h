#pragma once
// Runs the writing half: one ragged batch after the other while sequences are live, messages in between.
// Owns the engine; detached, because a step computes for long.

#include <caf/actor_addr.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <deque>
#include <map>
#include <memory>

#include "actors/load_board.h"
#include "actors/messages.h"
#include "actors/stage_engines.h"

namespace cedar::actors {

class DecoderStage final : public DecoderStageActor::extend<caf::reacts_to<StepAtom>>::base {
 public:
  /// The stage dies with the error when `make_engine` fails.
  DecoderStage(caf::actor_config& config, const DecoderEngineFactory& make_engine,
               std::shared_ptr<LoadBoard> board);

  behavior_type make_behavior() override;
  void on_exit() override;
  const char* name() const override { return "cedar.decoder_stage"; }

 private:
  using Promise = caf::typed_response_promise<RoomReserved>;
  struct Waiting {
    ReserveRoom message;
    Promise promise;
  };

  Promise reserve(ReserveRoom message);
  /// False: no room, and a live sequence will free some.
  bool try_reserve(Waiting& waiting);
  void reserve_waiting();
  void import_blocks(const BlocksReady& message);
  void start(const HandoffReady& message);
  void step();
  void cancel(RequestId id);
  void fail(RequestId id, const Error& error);
  void forget(RequestId id);
  void schedule_step();
  void publish_load();

  DecoderEngineFactory make_engine_;
  std::unique_ptr<DecoderEngine> engine_;
  std::shared_ptr<LoadBoard> board_;
  std::map<RequestId, SessionActor> live_;  // reserved in the engine
  std::deque<Waiting> waiting_;
  std::map<caf::actor_addr, RequestId> sessions_;
  bool step_scheduled_ = false;
};

}  // namespace cedar::actors
