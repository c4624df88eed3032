#pragma once
// Where the events of WebSocket responses go. All calls may come from any thread.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace cedar::gateway {

/// Close codes of the protocol (spec/api.md 6.6).
enum class CloseCode : uint16_t {
  normal = 1000,
  going_away = 1001,
  unsupported_data = 1003,
  internal = 1011,
  try_again = 1013,
  malformed = 4000,
  ping_timeout = 4004,
  slow_reader = 4008,
};

/// What the client of a connection may choose (session.update).
struct SessionPace {
  std::chrono::milliseconds ping_interval{0};
  std::chrono::milliseconds coalesce{
      0};  // deltas of an answer come at most once in that time; 0: at once
};

class FrameTarget {
 public:
  virtual ~FrameTarget() = default;
  /// One text frame. Dropped when the connection is gone.
  virtual void send(std::string frame) = 0;
  virtual void close(CloseCode code, std::string_view reason) = 0;
  /// Bytes handed to send() that the socket has not taken.
  virtual int64_t unsent_bytes() const = 0;
  virtual void set_pace(SessionPace pace) = 0;
  /// As last set.
  virtual std::chrono::milliseconds coalesce() const = 0;
  /// A response that was attached here has sent its last event, or belongs to another connection now.
  /// `last_frame`, unless it is empty, goes out once the response is no longer attached: who reads it may ask for
  /// the response again at once.
  virtual void response_left(const std::string& response_id, std::string last_frame) = 0;
};

}  // namespace cedar::gateway
