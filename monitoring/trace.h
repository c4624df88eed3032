#pragma once
// What a process did when, as Chrome trace JSON (open it in Perfetto or chrome://tracing). Times are those of the wall
// clock, so that the files of several processes of one machine lie on one axis (tools/merge_traces.py).
//
// Events are queued without waiting and written by a thread of the trace's own. When its queue or its file is full, events
// are dropped and counted; nobody waits for a disk. A file of a process that was killed lacks its last bracket, which the
// viewers accept.

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "core/result.h"

namespace cedar::monitoring {

/// A row of the viewer; work on it never overlaps.
enum class Track : uint8_t { encoder = 1, decoder = 2 };

/// `key` is a literal.
struct TraceField {
  const char* key;
  int64_t value;
};

class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  struct Options {
    std::string path;
    std::string process;      // its name in the viewer
    uint32_t process_id = 0;  // unlike those of the other processes
    int64_t max_bytes = int64_t{256} << 20;
    size_t max_queued = 1 << 16;
  };

  /// Errors: io_error naming the file.
  static Result<std::shared_ptr<Trace>> open(const Options& options);
  /// finish().
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Any thread. Names are literals.

  void work(Track track, const char* name, Time begin, Time end,
            std::initializer_list<TraceField> fields = {});
  /// One of several that may overlap; those of one id lie below each other.
  void span(const char* category, const char* name, uint64_t id, Time begin, Time end,
            std::initializer_list<TraceField> fields = {});

  int64_t dropped() const;
  /// Writes what is queued and closes the file; later events are dropped. Idempotent.
  void finish();

 private:
  struct Impl;
  explicit Trace(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cedar::monitoring
