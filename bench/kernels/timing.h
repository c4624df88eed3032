#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace cedar::bench {

/// `processor` is the time the calling thread really ran: on a machine that others use too, it says what one
/// thread can do, and nothing about several.
enum class Clock : uint8_t { wall, processor };

inline double now_s(Clock clock) {
  timespec t{};
  clock_gettime(clock == Clock::wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

struct Timing {
  double best_s = 0;
  double median_s = 0;
  int samples = 0;
};

/// Calls fn once to warm up, then until `min_s` have passed and at least 5 times, one sample a call.
template <class Fn>
Timing time_calls(Clock clock, double min_s, const Fn& fn) {
  fn();
  std::vector<double> samples;
  const double start = now_s(clock);
  double before = start;
  while (samples.size() < 5 || before - start < min_s) {
    fn();
    const double now = now_s(clock);
    samples.push_back(now - before);
    before = now;
  }
  std::sort(samples.begin(), samples.end());
  return {samples.front(), samples[samples.size() / 2], static_cast<int>(samples.size())};
}

}  // namespace cedar::bench
