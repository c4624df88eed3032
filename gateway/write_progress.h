#pragma once
// Whether a peer takes what it is sent. A write may last as long as it gets on: a slow reader is served, one
// that takes nothing is not.

#include <cstdint>
#include <utility>

namespace cedar::gateway {

/// Bytes that the peer of a TCP socket has acknowledged since it connected; its system acknowledges what
/// finds room in the receive buffer.
uint64_t acknowledged_bytes(int socket);

class WriteProgress {
 public:
  void begin(int socket) { taken_ = acknowledged_bytes(socket); }
  /// Whether the peer has taken anything since begin() or the last call.
  bool made(int socket) {
    const uint64_t now = acknowledged_bytes(socket);
    return std::exchange(taken_, now) != now;
  }

 private:
  uint64_t taken_ = 0;
};

}  // namespace cedar::gateway
