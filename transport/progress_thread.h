#pragma once
// The thread that owns a link: runs commands of other threads, progresses the link, ticks, sleeps in epoll.

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "transport/types.h"

namespace cedar::transport {

class ProgressThread {
 public:
  struct Work {
    std::function<size_t()> progress;                // events handled
    std::function<void(TimePoint)> tick;             // timers; after every round
    std::function<std::optional<TimePoint>()> next;  // when to tick again at the latest
    std::function<bool()> arm;                       // false: there is work
    std::function<bool()> finished;                  // after stop(): true when the thread may end
    int event_fd = -1;
  };

  /// Errors: io_error (no descriptor or thread to be had).
  static Result<std::unique_ptr<ProgressThread>> create();
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Errors: io_error.
  Status run(Work work, uint32_t spin_rounds);
  /// Runs `command` on the thread, in order. False once the thread has ended: it will not run.
  bool post(std::function<void()> command);
  /// Makes the thread look at its timers.
  void wake();
  bool on_thread() const { return std::this_thread::get_id() == thread_id_.load(); }
  /// The thread ends when work.finished(). REQUIRES: another thread.
  void stop_and_join();

 private:
  ProgressThread() = default;
  void loop(uint32_t spin_rounds);
  size_t run_commands();
  void sleep();

  Work work_;
  int epoll_fd_ = -1;
  int wake_fd_ = -1;
  std::atomic<bool> stopping_{false};
  std::atomic<std::thread::id> thread_id_{};
  // A mutex, because many threads post and one swaps the vector out; held for a push or a swap.
  std::mutex mutex_;
  std::vector<std::function<void()>> commands_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace cedar::transport
