#include "core/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "core/check.h"

namespace cedar {
namespace {

// A decode step issues a few hundred short jobs; a sleeping worker costs ~50 us to wake, so it looks for
// work this many times (about 20 us) before it sleeps.
constexpr int kSpins = 4000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  CEDAR_ASSERT(threads >= 1, std::to_string(threads));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { worker_loop(); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, const RangeFn& fn) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (workers_.empty() || count <= grain) {
    for (int64_t begin = 0; begin < count; begin += grain) {
      fn(begin, std::min(begin + grain, count));
    }
    return;
  }
  fn_ = &fn;
  count_ = count;
  grain_ = grain;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  run_ranges();
  for (int spins = 0; busy_.load(std::memory_order_acquire) != 0; ++spins) {
    relax();
    if (spins > kSpins) {
      const int busy = busy_.load(std::memory_order_acquire);
      if (busy != 0) busy_.wait(busy, std::memory_order_acquire);
    }
  }
}

void ThreadPool::run_ranges() {
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    (*fn_)(begin, std::min(begin + grain_, count_));
  }
}

void ThreadPool::worker_loop() {
  uint32_t seen = 0;
  for (;;) {
    for (int spins = 0; epoch_.load(std::memory_order_acquire) == seen; ++spins) {
      relax();
      if (spins > kSpins) epoch_.wait(seen, std::memory_order_acquire);
    }
    ++seen;
    if (stop_.load(std::memory_order_acquire)) return;
    run_ranges();
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

int usable_processors() {
  int count = 1;
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) count = std::max(CPU_COUNT(&mask), 1);
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  int64_t period = 0;
  if (file >> quota >> period && quota != "max" && period > 0) {
    const int64_t allowed = std::max<int64_t>(std::strtoll(quota.c_str(), nullptr, 10) / period, 1);
    count = static_cast<int>(std::min<int64_t>(count, allowed));
  }
  return count;
}

}  // namespace cedar
