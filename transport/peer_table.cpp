#include "transport/peer_table.h"

#include <algorithm>

#include "core/log.h"

namespace cedar::transport {
namespace {

using std::chrono::milliseconds;

std::string text(const PeerAddress& address) {
  return address.host + ":" + std::to_string(address.port);
}

}  // namespace

PeerTable::PeerTable(const TransportOptions& options, Link& link, TransportStats& stats,
                     std::function<void(PeerId, const Error&)> on_lost)
    : options_(options), link_(link), stats_(stats), on_lost_(std::move(on_lost)) {}

void PeerTable::connect(const PeerAddress& address, std::optional<NodeIdentity> expected,
                        TimePoint deadline, ConnectCallback callback, TimePoint now) {
  auto peer = link_.connect(address.host, address.port);
  if (!peer) {
    callback(make_error(peer.error().code, text(address) + ": " + peer.error().context));
    return;
  }
  Channel channel;
  channel.info.peer = *peer;
  channel.expected = expected;
  channel.callback = std::move(callback);
  channel.deadline = std::min(deadline, now + milliseconds(options_.handshake_timeout_ms));
  channel.address = text(address);
  channels_.emplace(*peer, std::move(channel));
}

void PeerTable::opened(PeerId peer, bool accepted, TimePoint now) {
  if (accepted) {
    Channel channel;
    channel.accepted = true;
    channel.info.peer = peer;
    channel.info.accepted = true;
    channel.state = State::greeting;
    channel.deadline = now + milliseconds(options_.handshake_timeout_ms);
    channels_.emplace(peer, std::move(channel));
    return;
  }
  const auto at = channels_.find(peer);
  if (at == channels_.end() || at->second.state != State::opening) return;
  at->second.state = State::greeting;
  Hello hello;
  hello.sender = options_.identity;
  hello.expected = at->second.expected;
  hello.cluster = options_.cluster;
  send(peer, hello);
}

/// Which lives of a node may speak: the newest seen, and newer ones, which end the older.
Status PeerTable::admit(const NodeIdentity& identity) {
  auto [at, first] = newest_generation_.try_emplace(identity.node, identity.generation);
  if (!first && identity.generation < at->second) {
    ++stats_.stale_generations;
    return make_error(Errc::stale_generation, to_string(identity) + "; it has been generation " +
                                                  std::to_string(at->second));
  }
  if (identity.generation == at->second) return {};
  at->second = identity.generation;
  for (auto channel = channels_.begin(); channel != channels_.end(); ++channel) {
    if (channel->second.state == State::ready &&
        channel->second.info.identity.node == identity.node)
      begin_close(channel,
                  make_error(Errc::stale_generation, to_string(channel->second.info.identity) +
                                                         " has come back as generation " +
                                                         std::to_string(identity.generation)));
  }
  return {};
}

void PeerTable::greet(PeerId peer, Channel& channel, const Hello& hello, TimePoint now) {
  Status verdict;
  if (hello.version != kProtocolVersion) {
    verdict =
        make_error(Errc::unsupported, "protocol version " + std::to_string(hello.version) +
                                          ", this node speaks " + std::to_string(kProtocolVersion));
  } else if (hello.cluster != options_.cluster) {
    verdict =
        make_error(Errc::invalid_argument,
                   "cluster '" + hello.cluster + "', this node is of '" + options_.cluster + "'");
  } else if (hello.expected && *hello.expected != options_.identity) {
    verdict = make_error(Errc::stale_generation, "expected " + to_string(*hello.expected) +
                                                     ", this is " + to_string(options_.identity));
  } else {
    verdict = admit(hello.sender);
  }
  if (verdict) {
    send(peer, Welcome{options_.identity});
    become_ready(peer, channel, hello.sender, now);
    return;
  }
  ++stats_.handshakes_refused;
  log::warn("transport", "connection refused",
            {{"node", uint64_t{hello.sender.node.value}}, {"reason", verdict.error().message()}});
  // The peer closes when it has read this; the handshake's deadline closes for one that does not.
  send(peer, Refuse{verdict.error()});
}

void PeerTable::become_ready(PeerId peer, Channel& channel, const NodeIdentity& identity,
                             TimePoint now) {
  channel.state = State::ready;
  channel.was_ready = true;
  channel.info.identity = identity;
  channel.info.lanes = link_.lanes(peer);
  channel.last_heard = now;
  channel.next_ping = now + milliseconds(options_.ping_interval_ms);
  ++stats_.peers_ready;
  ++version_;
  log::debug("transport", "peer up",
             {{"node", uint64_t{identity.node.value}}, {"lanes", channel.info.lanes}});
  const PeerInfo info = channel.info;
  if (const auto callback = std::exchange(channel.callback, {})) callback(info);
  if (options_.handlers.on_peer_up) options_.handlers.on_peer_up(info);
}

bool PeerTable::accept(PeerId peer, const Message& message, TimePoint now) {
  const auto at = channels_.find(peer);
  if (at == channels_.end() || at->second.state == State::closing) {
    ++stats_.late_messages;
    return false;
  }
  Channel& channel = at->second;
  channel.last_heard = now;
  if (channel.state == State::ready) {
    if (std::holds_alternative<Ping>(message)) {
      send(peer, Pong{});
    } else if (const auto* goodbye = std::get_if<Goodbye>(&message)) {
      begin_close(at, make_error(Errc::unavailable, "peer left: " + goodbye->reason));
    } else {
      return message.index() >= 6;  // not of this table
    }
    return false;
  }
  if (const auto* hello = std::get_if<Hello>(&message); hello != nullptr && channel.accepted) {
    greet(peer, channel, *hello, now);
  } else if (const auto* welcome = std::get_if<Welcome>(&message);
             welcome != nullptr && !channel.accepted) {
    Status verdict = admit(welcome->sender);
    if (verdict && channel.expected && *channel.expected != welcome->sender)
      verdict = make_error(Errc::stale_generation, "expected " + to_string(*channel.expected) +
                                                       ", found " + to_string(welcome->sender));
    if (verdict) {
      become_ready(peer, channel, welcome->sender, now);
    } else {
      begin_close(at, verdict.error());
    }
  } else if (const auto* refuse = std::get_if<Refuse>(&message);
             refuse != nullptr && !channel.accepted) {
    ++stats_.handshakes_refused;
    begin_close(at, refuse->error);
  } else {
    ++stats_.bad_messages;
    begin_close(at, make_error(Errc::invalid_argument, "message before the handshake"));
  }
  return false;
}

void PeerTable::heard(PeerId peer, TimePoint now) {
  const auto at = channels_.find(peer);
  if (at != channels_.end()) at->second.last_heard = now;
}

void PeerTable::send(PeerId peer, const Message& message) { link_.send(peer, encode(message), {}); }

void PeerTable::begin_close(Channels::iterator at, const Error& reason) {
  Channel& channel = at->second;
  if (channel.state == State::closing) return;
  if (channel.state == State::ready) --stats_.peers_ready;
  ++version_;
  channel.state = State::closing;
  channel.reason = reason;
  if (!channel.was_ready && !channel.address.empty())
    channel.reason.context = channel.address + ": " + reason.context;
  on_lost_(at->first, channel.reason);
  link_.close(at->first);
}

void PeerTable::disconnect(PeerId peer, const Error& reason) {
  const auto at = channels_.find(peer);
  if (at == channels_.end()) return;
  if (at->second.state == State::ready) send(peer, Goodbye{reason.context});
  begin_close(at, reason);
}

void PeerTable::drop(PeerId peer, const Error& reason) {
  const auto at = channels_.find(peer);
  if (at == channels_.end()) {
    link_.close(peer);
    return;
  }
  if (at->second.state == State::ready) ++stats_.peers_lost;
  begin_close(at, reason);
}

void PeerTable::disconnect_all(const Error& reason) {
  std::vector<PeerId> all;
  for (const auto& [peer, channel] : channels_) all.push_back(peer);
  for (const PeerId peer : all) disconnect(peer, reason);
}

void PeerTable::closed(PeerId peer) {
  const auto at = channels_.find(peer);
  if (at == channels_.end()) return;
  Channel channel = std::move(at->second);
  channels_.erase(at);
  if (channel.callback) channel.callback(channel.reason);
  if (!channel.was_ready) return;
  log::debug(
      "transport", "peer down",
      {{"node", uint64_t{channel.info.identity.node.value}}, {"reason", channel.reason.message()}});
  if (options_.handlers.on_peer_down) options_.handlers.on_peer_down(channel.info, channel.reason);
}

Result<PeerId> PeerTable::find(const NodeIdentity& identity) const {
  for (const auto& [peer, channel] : channels_) {
    if (channel.state == State::ready && channel.info.identity == identity) return peer;
  }
  const auto newest = newest_generation_.find(identity.node);
  if (newest != newest_generation_.end() && newest->second > identity.generation) {
    return make_error(Errc::stale_generation, to_string(identity) + "; it is generation " +
                                                  std::to_string(newest->second) + " now");
  }
  return make_error(Errc::unavailable, to_string(identity) + " is not connected");
}

bool PeerTable::ready(PeerId peer) const {
  const auto at = channels_.find(peer);
  return at != channels_.end() && at->second.state == State::ready;
}

std::vector<PeerInfo> PeerTable::list() const {
  std::vector<PeerInfo> peers;
  for (const auto& [peer, channel] : channels_) {
    if (channel.state == State::ready) peers.push_back(channel.info);
  }
  return peers;
}

void PeerTable::tick(TimePoint now) {
  // Time during which this process did not run (stopped, suspended, starved) says nothing about its peers: what they
  // sent meanwhile has not been read yet.
  const auto interval = milliseconds(options_.ping_interval_ms);
  const auto asleep = last_tick_ == TimePoint{} ? Clock::duration{} : now - last_tick_ - interval;
  last_tick_ = now;
  std::vector<std::pair<PeerId, Error>> lost;
  for (auto& [peer, channel] : channels_) {
    if (channel.state == State::opening || channel.state == State::greeting) {
      if (channel.deadline <= now)
        lost.emplace_back(peer, make_error(Errc::deadline_exceeded, "no handshake in time"));
    } else if (channel.state == State::ready) {
      if (asleep > Clock::duration{})
        channel.last_heard = std::min(now, channel.last_heard + asleep);
      if (now - channel.last_heard >= milliseconds(options_.ping_timeout_ms)) {
        lost.emplace_back(peer,
                          make_error(Errc::unavailable,
                                     to_string(channel.info.identity) + ": no sign of life for " +
                                         std::to_string(options_.ping_timeout_ms) + " ms"));
      } else if (channel.next_ping <= now) {
        channel.next_ping = now + interval;
        if (now - channel.last_heard >= interval / 2) send(peer, Ping{});
      }
    }
  }
  for (const auto& [peer, error] : lost) {
    if (ready(peer)) ++stats_.peers_silent;
    drop(peer, error);
  }
}

std::optional<TimePoint> PeerTable::next_deadline() const {
  std::optional<TimePoint> next;
  const auto consider = [&next](TimePoint at) {
    if (!next || at < *next) next = at;
  };
  for (const auto& [peer, channel] : channels_) {
    if (channel.state == State::ready) {
      consider(
          std::min(channel.next_ping, channel.last_heard + milliseconds(options_.ping_timeout_ms)));
    } else if (channel.state != State::closing) {
      consider(channel.deadline);
    }
  }
  return next;
}

}  // namespace cedar::transport
