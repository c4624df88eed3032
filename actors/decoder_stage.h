#pragma once
// Runs the writing half: one ragged batch after the other while sequences are live, messages in between.
// Owns the engine; detached, because a step computes for long.

#include <caf/actor_addr.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <deque>
#include <map>
#include <memory>

#include "actors/data_plane.h"
#include "actors/load_board.h"
#include "actors/messages.h"
#include "actors/stage_engines.h"

namespace cedar::actors {

struct DecoderStageSetup {
  DecoderEngineFactory make_engine;
  DataPlane plane;
  std::shared_ptr<LoadBoard> board;
};

class DecoderStage final : public DecoderStageActor::extend<caf::reacts_to<StepAtom>>::base {
 public:
  /// The stage dies with the error when the engine cannot be made.
  DecoderStage(caf::actor_config& config, DecoderStageSetup setup);

  behavior_type make_behavior() override;
  void on_exit() override;
  const char* name() const override { return "cedar.decoder_stage"; }

 private:
  using Promise = caf::typed_response_promise<RoomReserved>;
  struct Waiting {
    ReserveRoom message;
    Promise promise;
  };
  /// A hand-off with room in the engine, which knows it by a number of this stage.
  struct Live {
    HandoffId handoff;
    SessionActor session;
  };
  using Lives = std::map<RequestId, Live>;

  Promise reserve(ReserveRoom message);
  /// False: no room, and a live sequence will free some.
  bool try_reserve(Waiting& waiting);
  void reserve_waiting();
  Lives::iterator find(HandoffId handoff);
  void import_blocks(const ImportBlocks& message);
  void take_over(const TakeOver& message);
  void step();
  void cancel(HandoffId handoff);
  void fail(Lives::iterator live, const Error& error);
  void forget(Lives::iterator live);
  void schedule_step();
  void publish_load();

  DecoderStageSetup setup_;
  std::unique_ptr<DecoderEngine> engine_;
  Lives lives_;
  std::map<HandoffId, RequestId> numbers_;  // of lives_
  std::deque<Waiting> waiting_;
  std::map<caf::actor_addr, HandoffId> sessions_;
  uint64_t last_number_ = 0;
  bool step_scheduled_ = false;
};

}  // namespace cedar::actors
