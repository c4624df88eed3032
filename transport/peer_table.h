#pragma once
// Connections: hello and welcome, generations, pings, and their end. A connection is closed here for one reason, once.
// Progress thread only.

#include <map>
#include <unordered_map>
#include <vector>

#include "transport/link.h"
#include "transport/messages.h"
#include "transport/options.h"
#include "transport/transport.h"

namespace cedar::transport {

class PeerTable {
 public:
  /// All of them outlive the table. `on_lost` comes before on_peer_down, when the connection begins to end.
  PeerTable(const TransportOptions& options, Link& link, TransportStats& stats,
            std::function<void(PeerId, const Error&)> on_lost);

  void connect(const PeerAddress& address, std::optional<NodeIdentity> expected, TimePoint deadline,
               ConnectCallback callback, TimePoint now);
  /// Tells the peer and closes.
  void disconnect(PeerId peer, const Error& reason);
  /// Closes without a word: the peer is broken or does not listen.
  void drop(PeerId peer, const Error& reason);
  void disconnect_all(const Error& reason);

  /// The ready connection to this life of a node. Errors: stale_generation, unavailable.
  Result<PeerId> find(const NodeIdentity& identity) const;
  bool ready(PeerId peer) const;
  std::vector<PeerInfo> list() const;
  bool empty() const { return channels_.empty(); }
  size_t count() const { return channels_.size(); }
  /// Changes whenever list() does.
  uint64_t version() const { return version_; }

  // From the link.
  void opened(PeerId peer, bool accepted, TimePoint now);
  void closed(PeerId peer);
  /// True when the message belongs to a connection that may say such things now; the table has handled what is its own.
  bool accept(PeerId peer, const Message& message, TimePoint now);

  /// Bulk data is a sign of life, too.
  void heard(PeerId peer, TimePoint now);

  void tick(TimePoint now);
  std::optional<TimePoint> next_deadline() const;

 private:
  enum class State : uint8_t { opening, greeting, ready, closing };
  struct Channel {
    State state = State::opening;
    bool accepted = false;
    PeerInfo info;
    std::optional<NodeIdentity> expected;
    ConnectCallback callback;
    TimePoint deadline;  // of the handshake
    TimePoint last_heard;
    TimePoint next_ping;
    std::string address;  // where we connected to
    Error reason;         // why it closes
    bool was_ready = false;
  };
  using Channels = std::unordered_map<PeerId, Channel>;

  void send(PeerId peer, const Message& message);
  void begin_close(Channels::iterator at, const Error& reason);
  void greet(PeerId peer, Channel& channel, const Hello& hello, TimePoint now);
  void become_ready(PeerId peer, Channel& channel, const NodeIdentity& identity, TimePoint now);
  Status admit(const NodeIdentity& identity);

  const TransportOptions& options_;
  Link& link_;
  TransportStats& stats_;
  std::function<void(PeerId, const Error&)> on_lost_;
  Channels channels_;
  std::map<NodeId, uint64_t> newest_generation_;
  TimePoint last_tick_{};
  uint64_t version_ = 0;
};

}  // namespace cedar::transport
