#pragma once
// The gateway in a process of its own, fed by the synthetic source, so that its memory and its processor time are
// nobody else's.

#include <chrono>
#include <cstdint>
#include <memory>

#include "bench/serve/stamps.h"
#include "bench/serve/token_source.h"
#include "core/result.h"

namespace cedar::bench {

struct ServerSettings {
  SourceOptions source;
  int64_t max_connections = 4096;
  int io_threads = 1;
  std::chrono::milliseconds write_timeout{30000};  // of a client that does not read
};

/// Seconds of processor time, by what used it.
struct ServerTime {
  double total_s = 0;
  double source_s = 0;  // the thread that stands for the engine; what its sinks cost is in it
};

class ServerProcess {
 public:
  /// Forks and waits until the gateway listens on a free port of 127.0.0.1. REQUIRES: this process has no other
  /// threads. Errors: io_error, and what kept the gateway from starting.
  static Result<std::unique_ptr<ServerProcess>> start(const ServerSettings& settings,
                                                      const TokenScript& script, Stamps& stamps);
  /// Ends it at once.
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  uint16_t port() const { return port_; }
  /// Memory of its own: no file's pages and not the stamps. 0: it has died.
  int64_t memory_bytes() const;
  ServerTime processor_time() const;

 private:
  ServerProcess(int pid, int pipe) : pid_(pid), pipe_(pipe) {}

  int pid_;
  int pipe_;  // its end tells the process to go, also when this one dies
  uint16_t port_ = 0;
};

/// Seconds of processor time of this process.
double own_processor_time();

}  // namespace cedar::bench
