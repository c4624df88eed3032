#pragma once

#include <pthread.h>
#include <signal.h>

#include <csignal>
#include <functional>

namespace cedar::apps {

/// Blocks the stop signals for this thread and all that it starts, so that wait() is where they arrive. Until
/// then requested() tells of one, so that a start that takes minutes can be given up.
class StopSignals {
 public:
  StopSignals() {
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
           sigismember(&pending, SIGHUP) == 1;
  }
  /// Calls `on_hangup` for every SIGHUP, which is a stop signal without it. After the first stop signal the next one
  /// ends the process at once.
  const char* wait(const std::function<void()>& on_hangup = {}) {
    int signal = 0;
    while (sigwait(&signals_, &signal) == 0 && signal == SIGHUP && on_hangup) on_hangup();
    pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
    return signal == SIGINT ? "SIGINT" : signal == SIGHUP ? "SIGHUP" : "SIGTERM";
  }

 private:
  sigset_t signals_{};
};

}  // namespace cedar::apps
