#pragma once
// Admission: keeps a ledger of what the stages have promised, starts a session when both halves have room,
// lets a bounded number of requests wait, and refuses the rest at once. Starts the stages and replaces one
// that dies, within a restart budget. Ends sessions at their deadline.

#include <caf/actor_addr.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "actors/load_board.h"
#include "actors/membership_messages.h"
#include "actors/messages.h"

namespace cedar::actors {

struct RouterOptions {
  StageCapacity encoder;
  StageCapacity decoder;
  int64_t max_queued = 256;
  int64_t max_restarts = 3;  // of each stage, within restart_window
  std::chrono::seconds restart_window{60};
  std::chrono::milliseconds tick{50};
};

/// How to start a stage. Called from the router, which watches the result.
struct StageSpawners {
  DataEndpoint endpoint;  // of this process, where the stages run
  std::function<EncoderStageActor(caf::actor_system&)> encoder;
  std::function<DecoderStageActor(caf::actor_system&)> decoder;
};

class Router final : public RouterActor::base {
 public:
  Router(caf::actor_config& config, RouterOptions options, StageSpawners spawners,
         std::shared_ptr<LoadBoard> board);

  behavior_type make_behavior() override;
  void on_exit() override;
  const char* name() const override { return "cedar.router"; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Waiting {
    SubmitRequest message;
    Clock::time_point deadline;
  };
  struct Running {
    SessionActor session;
    std::shared_ptr<OnceSink> sink;
    Clock::time_point deadline;
    int64_t encoder_blocks = 0;  // promised; 0 once the encoder is done
    int64_t decoder_blocks = 0;
    bool in_encoder = true;
    bool ending = false;  // EndSession was sent
  };
  /// Room promised to sessions of one stage.
  struct Ledger {
    int64_t sequences = 0;
    int64_t blocks = 0;
    bool fits(const StageCapacity& capacity, int64_t more) const {
      return sequences < capacity.sequences && blocks + more <= capacity.blocks;
    }
  };
  template <class Handle>
  struct Stage {
    Handle actor;  // null while the stage is missing
    Ledger ledger;
    std::vector<Clock::time_point> restarts;
  };

  void submit(SubmitRequest message);
  /// Ok, or why this request can never run here.
  Status check_fits(const GenerateRequest& request) const;
  bool has_room(const GenerateRequest& request) const;
  void start_session(Waiting waiting);
  void start_waiting();
  void cancel(RequestId id);
  void encoder_free(RequestId id);
  void sweep_deadlines();
  int64_t drain(bool end_sessions);
  void on_down(const caf::down_msg& down);
  void session_down(std::map<caf::actor_addr, RequestId>::iterator session);
  template <class Handle>
  void stage_down(Stage<Handle>& stage, const char* which,
                  const std::function<Handle(caf::actor_system&)>& spawn_again);
  void fail_waiting(const Error& error);
  void announce_queue();
  void publish();
  bool stages_up() const { return encoder_.actor && decoder_.actor; }

  RouterOptions options_;
  StageSpawners spawners_;
  std::shared_ptr<LoadBoard> board_;
  Stage<EncoderStageActor> encoder_;
  Stage<DecoderStageActor> decoder_;
  std::deque<Waiting> waiting_;  // by priority, then arrival
  std::map<RequestId, Running> running_;
  std::map<caf::actor_addr, RequestId> sessions_;
  bool draining_ = false;
};

}  // namespace cedar::actors
