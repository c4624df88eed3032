#pragma once
// The inside of System, for system.cpp and for tests that bring stages of their own.

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "actors/board_metrics.h"
#include "actors/data_plane.h"
#include "actors/export_memory.h"
#include "actors/load_board.h"
#include "actors/local_engines.h"
#include "actors/local_stages.h"
#include "actors/request_list.h"
#include "actors/router.h"
#include "actors/stage_engines.h"
#include "actors/system.h"
#include "monitoring/trace.h"

namespace cedar::actors {

class ActorClient final : public Client {
 public:
  ActorClient(caf::actor_system& system, RouterActor router, std::shared_ptr<LoadBoard> board,
              std::shared_ptr<const RequestList> requests = nullptr);
  RequestId submit(GenerateRequest request, std::shared_ptr<StreamSink> sink) override;
  void cancel(RequestId id) override;
  Stats stats() const override;
  std::vector<RequestInfo> requests() const override;

 private:
  caf::actor_system& system_;
  RouterActor router_;
  std::shared_ptr<LoadBoard> board_;
  std::shared_ptr<const RequestList> requests_;
  std::atomic<uint64_t> next_id_{1};
};

struct System::Impl {
  explicit Impl(const SystemOptions& options);

  std::unique_ptr<transport::Transport> transport;
  DataPlane plane;
  std::shared_ptr<ExportMemory> memory;  // of the encoder's engines
  caf::actor_system_config config;
  std::unique_ptr<caf::actor_system> system;
  std::shared_ptr<LoadBoard> board = std::make_shared<LoadBoard>();
  std::shared_ptr<monitoring::Trace> trace;  // null: none
  std::shared_ptr<monitoring::Metrics> metrics;
  std::shared_ptr<void> board_metrics;
  RouterActor router;
  LocalStagesActor stages;
  std::unique_ptr<ActorClient> client;

  /// The router, and the stages of this process, which register with it.
  void start_router(const RouterOptions& options, const LocalStagesOptions& stage_options,
                    StageSpawners spawners);
  void stop();
};

/// Stage actors of this process that run the engines that the factories make.
inline StageSpawners detached_stages(EncoderEngineFactory encoder, DecoderEngineFactory decoder,
                                     const System::Impl& system) {
  return detached_stages(std::move(encoder), std::move(decoder), system.plane, system.memory,
                         system.board, system.trace, system.metrics);
}

/// An exit message that overtakes whatever waits in the mailbox. Null: nothing happens.
void end_actor(const caf::strong_actor_ptr& actor);

/// Refuses new requests, waits up to `grace` for the running ones, then cancels the rest and waits for their end.
void drain_router(caf::actor_system& system, const RouterActor& router,
                  std::chrono::milliseconds grace);

}  // namespace cedar::actors
