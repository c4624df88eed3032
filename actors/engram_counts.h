#pragma once
// How stages came by the Engram rows that they took from services. No CAF type appears here.

#include <cstdint>

namespace cedar::actors {

/// Rows, once per fetch that needed them, but for failed_fetches. Counters of a process's life.
struct EngramCounts {
  int64_t hits = 0;    // in the stage's cache
  int64_t ahead = 0;   // there because somebody had asked ahead
  int64_t late = 0;    // had been asked for ahead, and were still on their way
  int64_t misses = 0;  // asked for when they were needed
  int64_t failed_fetches = 0;

  EngramCounts& operator+=(const EngramCounts& other) {
    hits += other.hits;
    ahead += other.ahead;
    late += other.late;
    misses += other.misses;
    failed_fetches += other.failed_fetches;
    return *this;
  }
  friend EngramCounts operator-(const EngramCounts& a, const EngramCounts& b) {
    return {a.hits - b.hits, a.ahead - b.ahead, a.late - b.late, a.misses - b.misses,
            a.failed_fetches - b.failed_fetches};
  }
};

}  // namespace cedar::actors
