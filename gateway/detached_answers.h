#pragma once
// The answers that go on without a client. They may be resumed, but must not keep others waiting for long:
// their number is bounded, and the oldest give way to requests that wait for a place.

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

namespace cedar::gateway {

class StreamResponse;

/// Thread-safe.
class DetachedAnswers {
 public:
  explicit DetachedAnswers(int64_t max) : max_(max) {}

  /// `response` lost its client; the oldest beyond the bound are given up.
  void add(const std::shared_ptr<StreamResponse>& response);
  /// It ended, or has a client again.
  void remove(const StreamResponse& response);
  /// Gives up the `places` oldest.
  void give_way(int64_t places);

 private:
  // Connections of several io threads come here; nothing is called while it is held.
  std::mutex mutex_;
  std::deque<std::shared_ptr<StreamResponse>> responses_;  // oldest first
  int64_t max_;
};

}  // namespace cedar::gateway
