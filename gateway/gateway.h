#pragma once
// The front door: HTTP and WebSocket on one port. No Boost type appears here.

#include <chrono>
#include <cstdint>
#include <memory>

#include "actors/client.h"
#include "core/result.h"
#include "gateway/model_card.h"
#include "gateway/options.h"
#include "monitoring/metrics.h"

namespace cedar::gateway {

class Gateway {
 public:
  /// Listens and serves on threads of its own. `client` must live until finish_stop() returns; the gateway
  /// must live until the last request's sink has been called. `metrics` must outlive both.
  /// Errors: invalid_argument, io_error (the address), invalid_config (certificate and key).
  static Result<std::unique_ptr<Gateway>> start(const GatewayOptions& options,
                                                const ModelCard& card, actors::Client& client,
                                                monitoring::Metrics& metrics);
  /// As finish_stop(0).
  ~Gateway();
  Gateway(const Gateway&) = delete;
  Gateway& operator=(const Gateway&) = delete;

  /// Reads certificate and key again, for connections from now on. Errors: invalid_config; the old ones stay.
  Status reload_certificate();

  /// Where it listens.
  uint16_t port() const;
  int64_t connections() const;

  /// Takes no new work and tells clients that the server goes; running answers go on. `grace`: how long they
  /// may, which is what clients are told. Probes are still answered, on new connections as well: a balancer
  /// shall see that the server is not ready, not that it is gone.
  void begin_stop(std::chrono::milliseconds grace);
  /// Accepts nothing new, waits up to `limit` for the connections to end, closes the rest and stops the threads. Afterwards sinks
  /// may still be called but do nothing.
  void finish_stop(std::chrono::milliseconds limit);

 private:
  struct Impl;
  explicit Gateway(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cedar::gateway
