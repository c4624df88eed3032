#pragma once
// The other side of `cedar bench transport`: a process that publishes memory and serves pulls.

#include <memory>
#include <string>

#include "transport/transport.h"

namespace cedar::bench {

/// One way to connect two processes of this machine.
struct LinkKind {
  std::string name;  // "shm", "tcp"
  std::string tls;   // of UCX, for ours and for ucx_perftest
  std::string devices;
};

/// Forks. REQUIRES: this process has neither threads nor UCX yet, so create all producers first.
class Producer {
 public:
  static Result<std::unique_ptr<Producer>> fork(const LinkKind& kind, uint64_t bytes,
                                                uint32_t spin_rounds);
  ~Producer();
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;

  /// Starts its transport. The descriptor is of all its memory, published. Errors: io_error (it has died).
  Status start();
  uint16_t port() const { return port_; }
  const transport::RegionDescriptor& memory() const { return memory_; }

 private:
  Producer() = default;

  int pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  uint16_t port_ = 0;
  transport::RegionDescriptor memory_;
};

}  // namespace cedar::bench
