#pragma once
// Settings of one transport. Times in milliseconds, sizes in bytes.

#include <functional>
#include <span>
#include <string>

#include "transport/stats.h"
#include "transport/types.h"

namespace cedar::transport {

/// Called on the progress thread, which waits: hand work on, never block.
struct TransportHandlers {
  std::function<void(const PeerInfo&)> on_peer_up;
  /// After the last callback of every transfer with this peer.
  std::function<void(const PeerInfo&, const Error&)> on_peer_down;
  /// `bytes` live until the handler returns.
  std::function<void(PeerId, uint16_t kind, std::span<const std::byte> bytes)> on_message;
};

struct TransportOptions {
  NodeIdentity identity;
  std::string cluster = "cedar";  // peers of another name are refused at hello; at most 64 bytes

  std::string listen_host = "127.0.0.1";
  uint16_t listen_port = 0;  // 0: any free one, see Transport::listen_port

  // How much may be on its way from one peer. What does not fit waits; what cannot wait is refused.
  uint64_t window_bytes = 16u << 20;
  uint32_t window_parts = 32;
  uint32_t queue_pulls = 1024;     // unfinished pulls per transport; more: overloaded
  uint32_t queue_messages = 4096;  // unsent messages per transport; more: overloaded
  uint64_t queue_message_bytes = 16u << 20;

  // Ranges are joined until a part has this size; longer ones are cut. At least 256 KiB.
  uint64_t part_bytes = 1u << 20;
  uint32_t part_ranges = 64;  // at most so many pieces per part
  uint32_t max_message_bytes = 64u << 10;

  uint32_t ping_interval_ms = 500;
  uint32_t ping_timeout_ms = 3000;  // a peer silent for so long is lost
  uint32_t handshake_timeout_ms = 5000;
  // A pull that failed while bytes were being written waits for them so long, then gives up the whole connection.
  uint32_t cancel_grace_ms = 200;
  uint32_t shutdown_timeout_ms = 5000;

  // Rounds of polling before the progress thread sleeps. 0 on shared cores: there, spinning costs milliseconds.
  uint32_t spin_rounds = 0;

  TransportHandlers handlers;
};

/// Errors: invalid_argument naming the field and the value.
Status validate(const TransportOptions& options);

}  // namespace cedar::transport
