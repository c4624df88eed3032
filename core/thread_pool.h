#pragma once
// Threads for CPU kernels. The caller owns the pool; nothing in the product keeps a hidden one.

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace cedar {

class ThreadPool {
 public:
  /// `threads` workers in all, the calling thread included; 1 runs everything inline.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  using RangeFn = std::function<void(int64_t begin, int64_t end)>;

  /// Calls fn(begin, end) over disjoint ranges of at most `grain` items that cover [0, count); returns
  /// when all are done. Which thread runs which range is not fixed, so fn's result must not depend on
  /// it. One caller at a time; not re-entrant; fn must not throw.
  void parallel_for(int64_t count, int64_t grain, const RangeFn& fn);

 private:
  void worker_loop();
  void run_ranges();
  bool join_job(uint32_t state);
  void wait_for_members();

  std::vector<std::thread> workers_;
  const RangeFn* fn_ = nullptr;  // the job's fields are published by the release store to state_
  int64_t count_ = 0;
  int64_t grain_ = 1;
  std::atomic<int64_t> next_{0};
  /// Job number, whether it may still be joined, and how many workers are inside. A worker that wakes after the
  /// job was closed never joins it, so the caller waits only for those that took a share: a processor busy
  /// with something else costs its share, not a stall.
  std::atomic<uint32_t> state_{0};
  std::atomic<bool> stop_{false};
};

/// Processors this process may use: the scheduler's affinity mask and the cgroup's CPU quota.
int usable_processors();

}  // namespace cedar
