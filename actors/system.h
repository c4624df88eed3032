#pragma once
// Every actor of one process: starts them in order, stops them in order. No CAF type appears here.

#include <chrono>
#include <memory>

#include "actors/cache_options.h"
#include "actors/client.h"
#include "core/result.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "monitoring/metrics.h"
#include "monitoring/trace.h"

namespace cedar::actors {

struct SystemOptions {
  engine::EngineOptions engine;  // of each stage
  int64_t scheduler_threads = 1;
  int64_t max_throughput = 100;  // messages an actor handles before it yields its thread
  int64_t max_queued = 256;
  std::chrono::milliseconds index_timeout{2000};  // of a scan by indexers; in a cluster
  CacheOptions cache;
  std::shared_ptr<monitoring::Trace> trace;  // null: none
  std::shared_ptr<monitoring::Metrics> metrics = monitoring::no_metrics();
};

class System {
 public:
  /// Makes the engines of both stages, then the actors. Errors: those of the engines.
  static Result<std::unique_ptr<System>> start(std::shared_ptr<const engine::LoadedModel> model,
                                               const SystemOptions& options);
  /// Ends whatever is left and waits for every actor.
  ~System();
  System(const System&) = delete;
  System& operator=(const System&) = delete;

  /// Valid until the destructor; afterwards no sink is called any more.
  Client& client();

  /// Refuses new requests and waits up to `grace` for the running ones; then cancels the rest and waits for
  /// their end. Blocks; call once, not from an actor or a sink.
  void drain(std::chrono::milliseconds grace);

  struct Impl;  // system_impl.h
  explicit System(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace cedar::actors
