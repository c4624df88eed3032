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

// Fields of ThreadPool::state_.
constexpr uint32_t kMembers = 0x3ff;  // workers inside the job
constexpr uint32_t kOpen = 0x400;     // the job may be joined
constexpr uint32_t kJob = 0x800;      // one job number

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  CEDAR_ASSERT(threads >= 1 && threads <= static_cast<int>(kMembers), std::to_string(threads));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { worker_loop(); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  state_.fetch_add(kJob, std::memory_order_release);
  state_.notify_all();
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
  const uint32_t job = (state_.load(std::memory_order_relaxed) & ~(kOpen | kMembers)) + kJob;
  state_.store(job | kOpen, std::memory_order_release);
  state_.notify_all();
  run_ranges();
  state_.fetch_and(~kOpen, std::memory_order_relaxed);
  wait_for_members();
}

void ThreadPool::wait_for_members() {
  uint32_t state = state_.load(std::memory_order_acquire);
  for (int spins = 0; (state & kMembers) != 0; ++spins) {
    if (spins < kSpins) {
      relax();
    } else {
      state_.wait(state, std::memory_order_acquire);
    }
    state = state_.load(std::memory_order_acquire);
  }
}

void ThreadPool::run_ranges() {
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    (*fn_)(begin, std::min(begin + grain_, count_));
  }
}

bool ThreadPool::join_job(uint32_t state) {
  const uint32_t job = state & ~(kOpen | kMembers);
  while ((state & kOpen) != 0 && (state & ~(kOpen | kMembers)) == job) {
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire)) return true;
  }
  return false;
}

void ThreadPool::worker_loop() {
  uint32_t seen = 0;  // job number of the last job looked at
  for (;;) {
    uint32_t state = state_.load(std::memory_order_acquire);
    for (int spins = 0; (state & ~(kOpen | kMembers)) == seen; ++spins) {
      if (spins < kSpins) {
        relax();
      } else {
        state_.wait(state, std::memory_order_acquire);
      }
      state = state_.load(std::memory_order_acquire);
    }
    seen = state & ~(kOpen | kMembers);
    if (stop_.load(std::memory_order_acquire)) return;
    if (!join_job(state)) continue;
    run_ranges();
    const uint32_t before = state_.fetch_sub(1, std::memory_order_release);
    if ((before & kMembers) == 1) state_.notify_all();
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
