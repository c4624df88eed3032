#pragma once
// Runs the writing half: one ragged batch after the other while sequences are live, messages in between. Fetches what
// encoders offer and imports it between steps; a sequence begins when its blocks and its state are here. Owns the engine;
// detached, because a step computes for long.

#include <caf/actor_addr.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/answer_blocks.h"
#include "actors/data_plane.h"
#include "actors/load_board.h"
#include "actors/messages.h"
#include "actors/offer_puller.h"
#include "actors/stage_engines.h"
#include "monitoring/metrics.h"
#include "monitoring/trace.h"

namespace cedar::actors {

struct DecoderStageSetup {
  DecoderEngineFactory make_engine;
  DataPlane plane;
  std::shared_ptr<LoadBoard> board;
  OfferPullerOptions pulls;                  // the sizes of blocks and states come from the engine
  std::shared_ptr<monitoring::Trace> trace;  // null: none
  std::shared_ptr<monitoring::Metrics> metrics = monitoring::no_metrics();
};

/// From the stage's own data plane. `error` has the code ok when all went well.
struct PullEnded {
  uint64_t pull = 0;
  Error error;
};
struct OwnerReached {
  DataEndpoint owner;
  Error error;
};
/// Nobody reads this slot any more.
struct AnswerBlockEnded {
  size_t slot = 0;
};

class DecoderStage final
    : public DecoderStageActor::extend<caf::reacts_to<StepAtom>, caf::reacts_to<PullEnded>,
                                       caf::reacts_to<OwnerReached>,
                                       caf::reacts_to<AnswerBlockEnded>>::base,
      private OfferPuller::Receiver {
 public:
  /// The stage dies with the error when the engine cannot be made.
  DecoderStage(caf::actor_config& config, DecoderStageSetup setup);

  behavior_type make_behavior() override;
  void on_exit() override;
  const char* name() const override { return "cedar.decoder_stage"; }

 private:
  using Promise = caf::typed_response_promise<RoomReserved>;
  using WorkEnd = monitoring::WorkEnd;
  enum class Block : uint8_t { missing, asked, here };
  struct Waiting {
    ReserveRoom message;
    Promise promise;
    transport::TimePoint deadline;
  };
  /// A hand-off with room in the engine, which knows it by a number of this stage.
  struct Live {
    HandoffId handoff;
    SessionActor session;
    transport::TimePoint deadline;
    uint32_t attempt = 0;  // whose offers are taken
    std::vector<Block> blocks;
    int64_t asked = 0;  // blocks under way
    std::optional<engine::Handoff> state;
    bool started = false;
    bool keep_blocks = false;  // offer those that the answer completes
  };
  using Lives = std::map<RequestId, Live>;

  Status start();
  Promise reserve(ReserveRoom message);
  /// False: no room, and a live sequence will free some.
  bool try_reserve(Waiting& waiting);
  void reserve_waiting();
  Lives::iterator find(HandoffId handoff);
  /// The live hand-off that takes offers of this attempt; a newer one ends those before it.
  Lives::iterator accept(const Attempt& attempt);
  void import_blocks(const ImportBlocks& message);
  Status import_blocks(Lives::iterator live, const ImportBlocks& message);
  void take_over(const TakeOver& message);
  Status take_over(Lives::iterator live, const TakeOver& message);
  void try_start(Lives::iterator live);
  void give_up_attempt(Lives::iterator live, const Error& error);

  // What was fetched.
  void block_arrived(const Attempt& attempt, int64_t index,
                     std::span<const std::byte> bytes) override;
  void state_arrived(const Attempt& attempt, std::span<const std::byte> bytes) override;
  void fetch_failed(const Attempt& attempt, const Error& error) override;

  void step();
  void measure_step(transport::TimePoint begin,
                    const std::vector<engine::TokenEvent>& events) const;
  void block_written(RequestId number, int64_t index, std::span<const std::byte> bytes);
  void cancel(HandoffId handoff);
  void fail(Lives::iterator live, const Error& error);
  void forget(Lives::iterator live, WorkEnd end);
  void schedule_step();
  void publish_load();

  DecoderStageSetup setup_;
  std::unique_ptr<DecoderEngine> engine_;
  std::optional<OfferPuller> puller_;
  std::optional<AnswerBlocks> answer_blocks_;
  Lives lives_;
  std::map<HandoffId, RequestId> numbers_;  // of lives_
  std::deque<Waiting> waiting_;
  std::map<caf::actor_addr, HandoffId> sessions_;
  uint64_t last_number_ = 0;
  bool step_scheduled_ = false;
  transport::TimePoint step_sent_;
};

}  // namespace cedar::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::PullEnded)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::OwnerReached)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::AnswerBlockEnded)
