#pragma once
// The requests of one router, for an operator who asks what is under way. Who works for a request tells its entry; who asks
// gets a copy. No CAF type appears here.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/client.h"
#include "actors/data_plane.h"
#include "monitoring/metric_labels.h"

namespace cedar::actors {

/// Of one request, from its arrival at the router to its end. One writer at a time, any number of readers.
class RequestEntry {
 public:
  using Clock = std::chrono::steady_clock;

  RequestEntry(RequestId id, int64_t prompt_tokens, Clock::time_point arrival);

  void enter(monitoring::Phase phase, Clock::time_point now);
  /// Of the prompt.
  void read(int64_t tokens) { read_ = tokens; }
  void wrote(int64_t tokens) { written_ += tokens; }
  void set_stages(const DataEndpoint& encoder, const DataEndpoint& decoder);
  RequestInfo info(Clock::time_point now) const;

 private:
  const RequestId id_;
  const int64_t prompt_tokens_;
  const Clock::time_point arrival_;
  std::atomic<monitoring::Phase> phase_{monitoring::Phase::queue};
  std::atomic<Clock::time_point> phase_begin_;
  std::atomic<int64_t> read_{0};
  std::atomic<int64_t> written_{0};
  mutable std::mutex mutex_;  // of the two below; a request has other stages rarely
  std::string encoder_, decoder_;
};

/// Any thread.
class RequestList {
 public:
  /// Listed as long as the entry lives.
  std::shared_ptr<RequestEntry> add(RequestId id, int64_t prompt_tokens,
                                    RequestEntry::Clock::time_point arrival);
  /// The oldest first.
  std::vector<RequestInfo> list() const;

 private:
  mutable std::mutex mutex_;  // the router adds, gateways' threads read
  std::vector<std::weak_ptr<RequestEntry>> entries_;
  size_t prune_at_ = 64;
};

}  // namespace cedar::actors
