#pragma once
// An encoder whose layers are spread over several nodes, as sessions see it: the first rank. Cuts prompts into chunks, reads
// their first layers and sends the rows on; what the last rank offers it passes to the sessions. Up to `depth` chunks are
// under way, of one prompt or of several, so that all ranks are busy.
//
// A rank that fails or is lost takes with it the prompts whose chunks were under way; their sessions look for another
// encoder. Room is counted here: a prompt holds its pages until every rank has let go of it.

#include <caf/actor_addr.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "actors/data_plane.h"
#include "actors/load_board.h"
#include "actors/messages.h"
#include "actors/pipeline.h"
#include "actors/pipeline_wire.h"
#include "actors/rank_link.h"
#include "actors/work_index.h"
#include "engine/prefill_queue.h"
#include "engine/prefill_rank.h"
#include "monitoring/metrics.h"
#include "monitoring/trace.h"

namespace cedar::actors {

/// Makes the rank of the face, on the actor's thread, each time the stage starts.
using FaceRankFactory = std::function<Result<std::unique_ptr<engine::PrefillRank>>()>;

struct EncoderFaceSetup {
  FaceRankFactory make_rank;
  DataPlane plane;  // with calls and a directory
  PipelinePlace place;
  std::shared_ptr<LoadBoard> board;
  std::shared_ptr<monitoring::Trace> trace;  // null: none
  std::shared_ptr<monitoring::Metrics> metrics = monitoring::no_metrics();
};

/// The ranks behind have done with a chunk.
struct ChunkAnswered {
  uint64_t number = 0;
  std::shared_ptr<const Result<std::vector<std::byte>>> answer;
};
/// The ranks behind have let go of a prompt, or cannot be asked.
struct PromptReleased {
  RequestId id;
};

using EncoderFaceActor =
    EncoderStageActor::extend<caf::reacts_to<StepAtom>, caf::reacts_to<ChunkAnswered>,
                              caf::reacts_to<PromptReleased>>;

class EncoderFace final : public EncoderFaceActor::base {
 public:
  /// The stage dies with the error when the rank cannot be made.
  EncoderFace(caf::actor_config& config, EncoderFaceSetup setup);

  behavior_type make_behavior() override;
  void on_exit() override;
  const char* name() const override { return "cedar.encoder_face"; }

 private:
  /// One prompt; numbered so that no rank can take it for one of an earlier life of this face.
  struct Work {
    BeginPrefill begin;
    transport::TimePoint deadline;
    bool in_rank = false;    // else it waits for room
    bool abandoned = false;  // cancelled or failed: nothing more is sent
    bool finished = false;   // all of it is read
    bool failed = false;     // its next rows do not follow what the ranks have
    int32_t chunks = 0;      // under way
  };
  using Works = std::map<RequestId, Work>;

  Status start();
  void begin(BeginPrefill message);
  /// False: there is no room, and work that is under way will free some.
  bool try_submit(RequestId id);
  void submit_waiting();
  void step();
  Status run_chunk(size_t slot, const engine::PrefillQueue::Next& next);
  void answered(const ChunkAnswered& message);
  void report(const PipelineProgress& part, const DataEndpoint& owner);
  void cancel(const Attempt& attempt);
  void cancel(Works::iterator entry);
  void fail(RequestId id, const Error& error);
  void release(RequestId id, bool revoke);
  void released(RequestId id);
  void forget(Works::iterator entry);
  void schedule_step();
  void publish_load();

  EncoderFaceSetup setup_;
  std::unique_ptr<engine::PrefillRank> rank_;
  std::unique_ptr<engine::PrefillQueue> queue_;
  std::unique_ptr<RankLink> link_;
  std::vector<DataEndpoint> route_;
  uint64_t face_ = 0;
  uint64_t last_work_ = 0;
  Works works_;
  WorkIndex index_{*this};
  std::deque<RequestId> waiting_;
  uint64_t last_chunk_ = 0;
  std::map<uint64_t, std::vector<RequestId>> chunks_;  // under way
  bool step_scheduled_ = false;
};

/// A factory that first hands out a rank that was made beforehand, so that its errors reach the user, and what it can hold.
struct FaceEngine {
  FaceRankFactory make;
  int64_t blocks = 0;
};
Result<FaceEngine> make_face_engine(std::shared_ptr<const engine::LoadedModel> model,
                                    std::shared_ptr<engine::EngramSource> engram,
                                    const engine::EngineOptions& options);

}  // namespace cedar::actors

// One process only.
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::ChunkAnswered)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::PromptReleased)
