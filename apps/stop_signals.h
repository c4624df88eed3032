#pragma once

#include <pthread.h>
#include <signal.h>

#include <csignal>
#include <cstdint>
#include <functional>

namespace cedar::apps {

/// What SIGHUP asks for: to end, or to read the certificate again.
enum class Hangup : uint8_t { stops, reloads };

/// Blocks the stop signals for this thread and all that it starts, so that wait() is where they arrive. Until
/// then requested() tells of one, so that a start that takes minutes can be given up.
class StopSignals {
 public:
  explicit StopSignals(Hangup hangup) : hangup_(hangup) {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
  }
  bool requested() const {
    sigset_t pending{};
    sigpending(&pending);
    return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1 ||
           (hangup_ == Hangup::stops && sigismember(&pending, SIGHUP) == 1);
  }
  /// The stop signal. Calls `reload`, if there is one, for every SIGHUP that asks for it; one that came before waits until
  /// here. After the first stop signal the next one ends the process at once.
  const char* wait(const std::function<void()>& reload = {}) {
    int signal = 0;
    while (sigwait(&signals_, &signal) == 0 && signal == SIGHUP && hangup_ == Hangup::reloads) {
      if (reload) reload();
    }
    pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
    return signal == SIGINT ? "SIGINT" : signal == SIGHUP ? "SIGHUP" : "SIGTERM";
  }

 private:
  Hangup hangup_;
  sigset_t signals_{};
};

}  // namespace cedar::apps
