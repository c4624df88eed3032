#pragma once
// Both halves in one process without actors: what `cedar generate` and the engine's tests use.

#include <functional>
#include <memory>
#include <vector>

#include "engine/decode_engine.h"
#include "engine/prefill_engine.h"

namespace cedar::engine {

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(std::shared_ptr<const LoadedModel> model,
                                                const EngineOptions& options);
  ~Engine();

  using Sink = std::function<void(const TokenEvent&)>;
  /// Queues a request; `sink` gets its token events, the last with a finish reason, from inside step().
  Status submit(DecodeRequest request, std::vector<ImageRows> images, Sink sink);
  void cancel(RequestId id);
  bool idle() const;
  /// One prefill chunk and one decode step, where there is work.
  Status step();

 private:
  Engine();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cedar::engine
