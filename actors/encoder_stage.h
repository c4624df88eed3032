#pragma once
// Runs the reading half: one chunk after the other while there is work, messages in between. Owns the
// engine; detached, because a step computes for long.

#include <caf/actor_addr.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <deque>
#include <map>
#include <memory>

#include "actors/load_board.h"
#include "actors/messages.h"
#include "actors/stage_engines.h"

namespace cedar::actors {

class EncoderStage final : public EncoderStageActor::extend<caf::reacts_to<StepAtom>>::base {
 public:
  /// The stage dies with the error when `make_engine` fails.
  EncoderStage(caf::actor_config& config, const EncoderEngineFactory& make_engine,
               std::shared_ptr<LoadBoard> board);

  behavior_type make_behavior() override;
  void on_exit() override;
  const char* name() const override { return "cedar.encoder_stage"; }

 private:
  /// One prompt. Its pages go back to the engine when nobody holds the lease any more: the stage drops its
  /// own copy when the prompt is finished or cancelled, the decoder drops those of the announcements.
  struct Work {
    BeginPrefill begin;
    int64_t announced = 0;  // leading blocks the decoder knows of
    std::shared_ptr<const void> lease;
    bool abandoned = false;  // cancelled or failed: nothing more is sent
  };

  void begin(BeginPrefill message);
  /// False: the engine has no room, and work that is under way will free some.
  bool try_submit(RequestId id);
  void submit_waiting();
  void step();
  void report(const engine::PrefillEvent& event);
  void announce_blocks(RequestId id, Work& work, int64_t ready);
  void cancel(RequestId id);
  void release(RequestId id);
  void fail(RequestId id, const Error& error);
  void forget(std::map<RequestId, Work>::iterator entry);
  void schedule_step();
  void publish_load();

  EncoderEngineFactory make_engine_;
  std::shared_ptr<EncoderEngine> engine_;  // leases keep its pages alive if the stage dies
  std::shared_ptr<LoadBoard> board_;
  std::map<RequestId, Work> works_;  // `lease` is empty while the request waits
  std::deque<RequestId> waiting_;
  std::map<caf::actor_addr, RequestId> sessions_;
  bool step_scheduled_ = false;
};

}  // namespace cedar::actors
