#pragma once
// What a node without a gateway says over HTTP: /livez, /ready, /metrics. For probes and Prometheus on a network of the
// operator's own; it takes no bodies, keeps no connection and holds a few at a time.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/result.h"

namespace cedar::gateway {

struct NodePageOptions {
  std::string host;  // an IP address, or localhost
  uint16_t port = 0;
  int64_t max_connections = 32;  // the oldest is closed for one more
  int64_t timeout_ms = 5000;     // of one exchange
};

/// Called on the page's thread; quick.
struct NodePageSources {
  std::function<bool()> ready;
  std::function<std::string()> metrics;  // Prometheus text format 0.0.4
};

class NodePage {
 public:
  /// Errors: invalid_argument (host), io_error (the port).
  static Result<std::unique_ptr<NodePage>> start(const NodePageOptions& options,
                                                 NodePageSources sources);
  ~NodePage();
  NodePage(const NodePage&) = delete;
  NodePage& operator=(const NodePage&) = delete;

  uint16_t port() const;

 private:
  struct Impl;
  explicit NodePage(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cedar::gateway
