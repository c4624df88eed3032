#pragma once
// The stages of this process: starts them, starts one that died again (within a budget), and says so to whoever gives
// them work: the router of this process, and the memberships at gateways elsewhere.

#include <caf/actor_addr.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "actors/load_board.h"
#include "actors/membership_messages.h"

namespace cedar::actors {

/// How to start a stage. Null: this process has no such stage.
struct StageSpawners {
  DataEndpoint endpoint;  // of this process
  std::function<EncoderStageActor(caf::actor_system&)> encoder;
  std::function<DecoderStageActor(caf::actor_system&)> decoder;
  std::function<KvCacheActor(caf::actor_system&)> cache;
};

struct LocalStagesOptions {
  std::string node = "local";
  StageCapacity encoder;
  StageCapacity decoder;
  std::string fingerprint;        // NodeDescription
  std::vector<Service> services;  // of this process; they are announced with the stages
  /// Whether the encoder's other ranks are there; asked every report_interval. While they are not, it is not announced.
  /// Null: it has none.
  std::function<bool()> encoder_complete;
  std::function<bool()> decoder_complete;  // the same of the decoder
  int64_t max_restarts = 3;                // of each stage, within restart_window
  std::chrono::seconds restart_window{60};
  /// What the stages write; listeners get it every report_interval. Null: no reports.
  std::shared_ptr<const LoadBoard> board;
  std::chrono::milliseconds report_interval{100};
  /// A stage died more often than the budget allows; on the actor's thread.
  std::function<void(const char* stage)> on_given_up;
};

using LocalStagesActor = caf::typed_actor<caf::reacts_to<TickAtom>>;

class LocalStages final : public LocalStagesActor::base {
 public:
  LocalStages(caf::actor_config& config, LocalStagesOptions options, StageSpawners spawners,
              std::vector<NodeListener> listeners);

  behavior_type make_behavior() override;
  void on_exit() override;
  const char* name() const override { return "cedar.local_stages"; }

 private:
  using Clock = std::chrono::steady_clock;

  void on_down(const caf::down_msg& down);
  void announce();
  /// Looks for the other ranks of the stages here; whether there was news.
  bool look_for_ranks();
  /// Whether a stage that died may be started again. If not, the node is of no use without it, or goes on.
  bool restart(std::vector<Clock::time_point>& restarts, const char* stage,
               bool node_needs_it = true);
  template <class Message>
  void tell(const Message& message) {
    for (const NodeListener& listener : listeners_) send(listener, message);
  }

  LocalStagesOptions options_;
  StageSpawners spawners_;
  std::vector<NodeListener> listeners_;
  NodeDescription node_;
  bool encoder_complete_ = true;
  bool decoder_complete_ = true;
  std::vector<Clock::time_point> encoder_restarts_;
  std::vector<Clock::time_point> decoder_restarts_;
  std::vector<Clock::time_point> cache_restarts_;
};

/// What a board says now.
NodeLoad load_of(const LoadBoard& board);

}  // namespace cedar::actors
