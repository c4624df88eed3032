#pragma once
// Admission: knows the stages and what it has promised of their room, starts a session when both halves have room, lets
// a bounded number of requests wait, and refuses the rest at once. Finds another stage for a session that lost one.
// Ends sessions at their deadline. Stages come and go (NodeListener); whether they are of this process or of other nodes
// makes no difference here.

#include <caf/actor_addr.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/load_board.h"
#include "actors/membership_messages.h"
#include "actors/messages.h"
#include "actors/request_list.h"
#include "actors/stage_table.h"
#include "monitoring/metrics.h"
#include "monitoring/trace.h"

namespace cedar::actors {

struct RouterOptions {
  int64_t max_queued = 256;
  std::chrono::milliseconds tick{50};
  /// How long requests wait for a kind of stage that is missing, at the start and when the last one is lost: its process
  /// may be starting.
  std::chrono::milliseconds stage_grace{5000};
  int32_t max_replacements = 3;  // stages that a request may lose before it fails
  /// Prompts that begin with the same blocks go to the same encoder.
  int64_t affinity_blocks = 4;
  /// The board's stage figures are sums of the nodes' reports; otherwise the stages write them themselves.
  bool sum_reports = false;
  std::shared_ptr<monitoring::Trace> trace;  // null: none
  std::shared_ptr<monitoring::Metrics> metrics = monitoring::no_metrics();
  std::shared_ptr<RequestList> requests = std::make_shared<RequestList>();
};

class Router final : public RouterActor::extend_with<NodeListener>::base {
 public:
  Router(caf::actor_config& config, RouterOptions options, std::shared_ptr<LoadBoard> board);

  behavior_type make_behavior() override;
  void on_exit() override;
  const char* name() const override { return "cedar.router"; }

 private:
  using Clock = std::chrono::steady_clock;
  using EncoderPromise = caf::typed_response_promise<EncoderChoice>;
  using DecoderPromise = caf::typed_response_promise<EncoderChoice, DecoderChoice>;

  struct Waiting {
    SubmitRequest message;
    Clock::time_point deadline;
    Clock::time_point arrival;
    std::shared_ptr<RequestEntry> entry;
  };
  struct Running {
    std::shared_ptr<const GenerateRequest> request;
    SessionActor session;
    std::shared_ptr<OnceSink> sink;
    Clock::time_point deadline;
    caf::actor_addr encoder;  // where room is promised; none once the encoder is done
    caf::actor_addr decoder;
    Need at_encoder, at_decoder;  // what is promised there
    bool ending = false;          // EndSession was sent
  };
  /// A session that asks for another stage and has to wait for one.
  struct Replacement {
    RequestId id;
    caf::actor_addr lost;
    std::optional<EncoderPromise> encoder;
    std::optional<DecoderPromise> decoder;
  };

  void submit(SubmitRequest message);
  /// Ok, or why this request can never run here.
  Status check_fits(const GenerateRequest& request) const;
  Need encoder_need(const GenerateRequest& request) const;
  Need decoder_need(const GenerateRequest& request) const;
  EncoderEntry* choose_encoder(const GenerateRequest& request, const caf::actor_addr& avoid = {});
  CacheChoice choose_cache(const GenerateRequest& request, const EncoderEntry& encoder) const;
  /// False: no room now.
  bool try_start(const Waiting& waiting);
  void start_waiting();
  void cancel(RequestId id);
  void promise_encoder(Running& running, const EncoderEntry& stage);
  void promise_decoder(Running& running, const DecoderEntry& stage);
  void release_encoder(Running& running);
  void release_decoder(Running& running);
  EncoderPromise replace_encoder(const ReplaceEncoder& message);
  DecoderPromise replace_decoder(const ReplaceDecoder& message);
  /// True: answered, one way or the other.
  bool try_replace(Replacement& replacement);
  void try_replacements();
  void sweep();
  int64_t drain(bool end_sessions);
  void on_down(const caf::down_msg& down);
  void session_down(std::map<caf::actor_addr, RequestId>::iterator session);
  void node_joined(const NodeDescription& node);
  void node_left(const NodeLeft& message);
  void count_engram(const NodeReport& message);
  void stages_changed(bool for_good);
  void refuse_what_cannot_fit();
  /// The kind of stage that is missing and will not come soon; null: none is.
  const char* missing(Clock::time_point now) const;
  void fail_waiting(const Error& error);
  /// Ends a request that no stage has worked for.
  void reject(OnceSink& sink, Error error);
  void announce_queue();
  void publish();
  bool stages_up() const { return stages_.has_encoder() && stages_.has_decoder(); }

  RouterOptions options_;
  std::shared_ptr<LoadBoard> board_;
  StageTable stages_;
  // Until when requests wait for a kind of stage that is missing.
  Clock::time_point encoder_grace_;
  Clock::time_point decoder_grace_;
  std::deque<Waiting> waiting_;  // by priority, then arrival
  std::map<RequestId, Running> running_;
  std::map<caf::actor_addr, RequestId> sessions_;
  std::vector<Replacement> replacements_;
  /// Of each node's latest life: its generation, and what it has counted.
  std::map<std::string, std::pair<uint64_t, EngramCounts>> engram_seen_;
  EngramCounts engram_;  // of all
  bool draining_ = false;
  Clock::time_point next_tick_;
  Clock::time_point let_in_;  // when a request was let in, or the first one began to wait
};

}  // namespace cedar::actors
