#pragma once
// The events of one streamed answer, numbered from 1 without gaps, kept for a client that lost its socket.

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

namespace cedar::gateway {

class EventLog {
 public:
  explicit EventLog(int64_t max_bytes) : max_bytes_(max_bytes) {}

  /// The number the next event gets.
  int64_t next_seq() const { return next_seq_; }
  /// Keeps the event with number next_seq(); the oldest go when there are too many bytes.
  void append(std::string event) {
    bytes_ += static_cast<int64_t>(event.size());
    events_.push_back(std::move(event));
    ++next_seq_;
    while (bytes_ > max_bytes_ && events_.size() > 1) drop_oldest();
  }
  /// The client has everything up to `seq`.
  void acknowledge(int64_t seq) {
    while (!events_.empty() && oldest_seq() <= seq) drop_oldest();
  }
  /// The number of the first event that is still here; next_seq() when none is.
  int64_t oldest_seq() const { return next_seq_ - static_cast<int64_t>(events_.size()); }
  /// REQUIRES: oldest_seq() <= seq < next_seq().
  const std::string& event(int64_t seq) const {
    return events_[static_cast<size_t>(seq - oldest_seq())];
  }
  int64_t bytes() const { return bytes_; }

 private:
  void drop_oldest() {
    bytes_ -= static_cast<int64_t>(events_.front().size());
    events_.pop_front();
  }

  int64_t max_bytes_;
  int64_t bytes_ = 0;
  int64_t next_seq_ = 1;
  std::deque<std::string> events_;
};

}  // namespace cedar::gateway
