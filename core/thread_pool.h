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

  std::vector<std::thread> workers_;
  const RangeFn* fn_ = nullptr;  // published by the release store to epoch_
  int64_t count_ = 0;
  int64_t grain_ = 1;
  std::atomic<int64_t> next_{0};
  std::atomic<int> busy_{0};        // workers that have not finished the current epoch
  std::atomic<uint32_t> epoch_{0};  // a new value starts a job; workers wait on it
  std::atomic<bool> stop_{false};
};

/// Processors this process may use: the scheduler's affinity mask and the cgroup's CPU quota.
int usable_processors();

}  // namespace cedar
