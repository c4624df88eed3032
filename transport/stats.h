#pragma once
// What a transport has done so far. Counters only grow; gauges say so. The monitoring room turns them into metrics.

#include <array>
#include <cstdint>
#include <string>

#include "transport/types.h"

namespace cedar::transport {

struct TransportStats {
  static constexpr size_t kErrcCount = 16;  // one per value of Errc

  // Consumer.
  uint64_t pulls_started = 0;
  uint64_t pulls_unfinished = 0;                   // gauge
  std::array<uint64_t, kErrcCount> pulls_ended{};  // by Errc; [Errc::ok] are the successes
  uint64_t bytes_pulled = 0;                       // of successful pulls
  double pull_seconds = 0;       // sum over successful pulls, from request to callback
  uint64_t parts_requested = 0;  // messages to producers
  uint64_t gets = 0;             // remote reads without the producer's help

  // Producer.
  uint64_t parts_served = 0;
  uint64_t bytes_served = 0;
  std::array<uint64_t, kErrcCount> requests_refused{};  // by Errc
  uint64_t leases_live = 0;                             // gauge
  uint64_t leases_granted = 0;
  uint64_t leases_released = 0;
  uint64_t leases_expired = 0;
  uint64_t leases_revoked = 0;
  uint64_t releases_unknown = 0;  // of leases that had ended before

  // Connections.
  uint64_t peers_ready = 0;    // gauge
  uint64_t connections = 0;    // gauge: handshakes and connections being closed, too
  uint64_t peers_lost = 0;     // ended by an error or by silence
  uint64_t peers_silent = 0;   // of these, by silence
  uint64_t forced_closes = 0;  // connections given up because a transfer would not end
  uint64_t handshakes_refused = 0;
  uint64_t stale_generations = 0;  // messages and connections of an earlier life of a node
  uint64_t late_messages = 0;      // for a connection or a transfer that had ended
  uint64_t bad_messages = 0;       // that could not be parsed

  uint64_t messages_sent = 0;  // of Transport::send
  uint64_t messages_received = 0;
};

/// One connection as it is now.
struct PeerInfo {
  PeerId peer;
  NodeIdentity identity;
  bool accepted = false;  // the peer connected to us
  std::string lanes;      // "tcp/lo", "sysv/memory,posix/memory,tcp/lo", "loopback"
};

}  // namespace cedar::transport
