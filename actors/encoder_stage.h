#pragma once
// Runs the reading half: one chunk after the other while there is work, messages in between. What it computes is offered
// in place, under leases of its transport; the pages of a prompt are free again when the last of them has ended. What a cache
// has of a prompt is fetched before the first chunk (encoder_stage_cached.cpp). Owns the engine; detached, because a step
// computes for long.

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
#include "actors/offer_puller.h"
#include "actors/stage_engines.h"
#include "actors/state_slots.h"
#include "actors/work_index.h"
#include "monitoring/metrics.h"
#include "monitoring/trace.h"

namespace cedar::actors {

struct EncoderStageSetup {
  EncoderEngineFactory make_engine;      // its blocks lie in `memory`
  std::shared_ptr<ExportMemory> memory;  // of `plane`
  DataPlane plane;
  std::shared_ptr<LoadBoard> board;
  std::shared_ptr<monitoring::Trace> trace;  // null: none
  std::shared_ptr<monitoring::Metrics> metrics = monitoring::no_metrics();
};

/// From the stage's own data plane. `error` has the code ok when all went well.
struct CachedPullEnded {
  uint64_t pull = 0;
  Error error;
};
struct CacheReached {
  DataEndpoint owner;
  Error error;
};

/// Computing is the alternative to waiting for the cache.
inline constexpr std::chrono::seconds kCachePatience{2};

class EncoderStage final
    : public EncoderStageActor::extend<caf::reacts_to<StepAtom>, caf::reacts_to<CachedPullEnded>,
                                       caf::reacts_to<CacheReached>>::base,
      private OfferPuller::Receiver {
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
    bool failed = false;
    int64_t cached_blocks = 0;  // that it waits for or has taken over
    int64_t cached_here = 0;    // of them
    bool waits_for_windows = false;
    bool has_windows = false;  // of an earlier turn, imported
    Position length = 0;       // tokens to read
    int64_t offered_blocks = 0;
    std::set<LeaseId> leases;        // live ones of the decoder
    std::set<LeaseId> cache_leases;  // live ones of the cache
    std::optional<size_t> state_slot;
    struct Windows {
      size_t slot = 0;
      LeaseId lease;  // one of cache_leases
    };
    std::optional<Windows> windows;  // on offer for the next turn
  };
  using Works = std::map<RequestId, Work>;

  Status start();
  void begin(BeginPrefill message);
  /// False: the engine has no room, and work that is under way will free some.
  bool try_submit(RequestId id);
  void submit_waiting();
  /// Fetches the cached blocks of a prompt that the engine keeps waiting for them, and its windows.
  void fetch_cached(RequestId id);
  Status fetch_blocks(RequestId id, Work& work);
  Status fetch_windows(RequestId id, Work& work);
  void import_windows(RequestId id, Work& work, std::span<const std::byte> bytes);
  void resume_if_all_is_here(RequestId id);
  void resume(RequestId id, int64_t blocks);
  void step();
  void measure_chunk(transport::TimePoint begin,
                     const std::vector<engine::PrefillEvent>& events) const;
  void report(const engine::PrefillEvent& event);
  Status offer_blocks(RequestId id, Work& work, int64_t ready, PrefillProgress& progress);
  /// Offers the state of a prompt that has been read, or lets it wait for a slot.
  void hand_over(RequestId id, Work& work, PrefillProgress progress);
  Status offer_state(RequestId id, Work& work, PrefillProgress& progress);
  /// For the next turn; best effort.
  void offer_windows(RequestId id, Work& work, PrefillProgress& progress);
  struct Offered {
    Offer offer;
    LeaseId lease;
  };
  Result<Offered> offer(RequestId id, transport::TimePoint deadline,
                        std::span<const std::span<const std::byte>> parts);
  void drop_fetches(const Work& work);
  void cancel(const Attempt& attempt);
  void cancel(Works::iterator entry);
  void lease_ended(const LeaseReturned& message);
  /// Frees what a work holds once nobody reads it any more.
  void release_if_done(Works::iterator entry);
  void fail(RequestId id, const Error& error);
  void forget(Works::iterator entry);
  void schedule_step();
  void publish_load();

  // What was fetched from the cache.
  void block_arrived(const Attempt& attempt, int64_t index,
                     std::span<const std::byte> bytes) override;
  void state_arrived(const Attempt& attempt, std::span<const std::byte> bytes) override;
  void fetch_failed(const Attempt& attempt, const Error& error) override;

  EncoderStageSetup setup_;
  std::unique_ptr<EncoderEngine> engine_;
  std::optional<OfferPuller> puller_;
  StateSlots states_;
  StateSlots windows_;  // made when first asked for
  std::deque<PrefillProgress> waiting_for_slot_;
  Works works_;
  WorkIndex index_{*this};
  std::deque<RequestId> waiting_;
  uint64_t last_work_ = 0;
  bool step_scheduled_ = false;
  transport::TimePoint step_sent_;
};

}  // namespace cedar::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::CachedPullEnded)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::CacheReached)
