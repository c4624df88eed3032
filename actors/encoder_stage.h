#pragma once
// Runs the reading half: one chunk after the other while there is work, messages in between. What it computes is offered
// in place, under leases of its transport; the pages of a prompt are free again when the last of them has ended. Owns the
// engine; detached, because a step computes for long.

#include <caf/actor_addr.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "actors/data_plane.h"
#include "actors/export_memory.h"
#include "actors/load_board.h"
#include "actors/messages.h"
#include "actors/stage_engines.h"
#include "monitoring/trace.h"

namespace cedar::actors {

struct EncoderStageSetup {
  EncoderEngineFactory make_engine;      // its blocks lie in `memory`
  std::shared_ptr<ExportMemory> memory;  // of `plane`
  DataPlane plane;
  std::shared_ptr<LoadBoard> board;
  std::shared_ptr<monitoring::Trace> trace;  // null: none
};

class EncoderStage final : public EncoderStageActor::extend<caf::reacts_to<StepAtom>>::base {
 public:
  /// The stage dies with the error when the engine cannot be made.
  EncoderStage(caf::actor_config& config, EncoderStageSetup setup);

  behavior_type make_behavior() override;
  void on_exit() override;
  const char* name() const override { return "cedar.encoder_stage"; }

 private:
  /// One prompt. The engine knows it by a number of this stage: attempts of one hand-off may overlap here.
  struct Work {
    BeginPrefill begin;
    transport::TimePoint deadline;
    bool in_engine = false;  // else it waits for room
    bool finished = false;   // everything is offered
    bool abandoned = false;  // cancelled or failed: nothing more is sent
    int64_t offered_blocks = 0;
    std::set<LeaseId> leases;  // live ones
    std::optional<size_t> state_slot;
  };
  using Works = std::map<RequestId, Work>;

  Status start();
  void begin(BeginPrefill message);
  /// False: the engine has no room, and work that is under way will free some.
  bool try_submit(RequestId id);
  void submit_waiting();
  void step();
  void trace_chunk(transport::TimePoint begin,
                   const std::vector<engine::PrefillEvent>& events) const;
  void report(const engine::PrefillEvent& event);
  Status offer_blocks(RequestId id, Work& work, int64_t ready, PrefillProgress& progress);
  /// Offers the state of a prompt that has been read, or lets it wait for a slot.
  void hand_over(RequestId id, Work& work, PrefillProgress progress);
  Status offer_state(RequestId id, Work& work, size_t slot, PrefillProgress& progress);
  Result<Offer> offer(RequestId id, Work& work, std::span<const std::span<const std::byte>> parts);
  void cancel(const Attempt& attempt);
  void cancel(Works::iterator entry);
  void lease_ended(const LeaseReturned& message);
  /// Frees what a work holds once nobody reads it any more.
  void release_if_done(Works::iterator entry);
  void fail(RequestId id, const Error& error);
  void forget(Works::iterator entry);
  void schedule_step();
  void publish_load();

  EncoderStageSetup setup_;
  std::unique_ptr<EncoderEngine> engine_;
  Buffer state_memory_;
  int64_t state_slot_bytes_ = 0;
  std::vector<size_t> free_state_slots_;
  std::deque<PrefillProgress> waiting_for_slot_;
  Works works_;
  std::map<Attempt, RequestId> attempts_;
  std::deque<RequestId> waiting_;
  std::map<caf::actor_addr, std::set<RequestId>> sessions_;
  uint64_t last_work_ = 0;
  bool step_scheduled_ = false;
};

}  // namespace cedar::actors
