#pragma once
// When the source emitted each token, in memory that server and client processes share. Both read the same
// monotonic clock.

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>

#include "core/result.h"

namespace cedar::bench {

inline int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Stamps {
 public:
  /// REQUIRES: called before the fork. Errors: out_of_memory.
  static Result<std::unique_ptr<Stamps>> create(int64_t streams, int64_t tokens);
  ~Stamps() { ::munmap(memory_, bytes_); }
  Stamps(const Stamps&) = delete;
  Stamps& operator=(const Stamps&) = delete;

  int64_t streams() const { return streams_; }
  int64_t tokens() const { return tokens_; }
  /// Monotonic ns at which token `index` of `stream` was emitted; 0: not yet.
  std::atomic<int64_t>& emitted(int64_t stream, int64_t index) {
    return cells_[1 + stream * tokens_ + index];
  }
  /// The longest time by which the source was behind its own schedule, in ns.
  std::atomic<int64_t>& max_lag() { return cells_[0]; }

 private:
  Stamps(void* memory, size_t bytes, int64_t streams, int64_t tokens)
      : memory_(memory),
        bytes_(bytes),
        streams_(streams),
        tokens_(tokens),
        cells_(static_cast<std::atomic<int64_t>*>(memory)) {}

  void* memory_;
  size_t bytes_;
  int64_t streams_;
  int64_t tokens_;
  std::atomic<int64_t>* cells_;  // max_lag, then [streams, tokens]
};

inline Result<std::unique_ptr<Stamps>> Stamps::create(int64_t streams, int64_t tokens) {
  static_assert(std::atomic<int64_t>::is_always_lock_free);
  const auto count = static_cast<size_t>(1 + streams * tokens);
  const size_t bytes = count * sizeof(std::atomic<int64_t>);
  // Zero pages are a valid array of zeros for a lock-free atomic.
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return make_error(Errc::out_of_memory,
                      std::to_string(bytes) + " bytes for the times of all tokens");
  }
  return std::unique_ptr<Stamps>(new Stamps(memory, bytes, streams, tokens));
}

}  // namespace cedar::bench
