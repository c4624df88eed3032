#pragma once
// What Calls remembers: calls made and served, peers and what is to be sent to them, timers.

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "transport/call_messages.h"
#include "transport/calls.h"

namespace cedar::transport {

/// Calls of a node to itself have this peer.
constexpr PeerId kSelf{~uint64_t{0}};

/// A call as its server names it.
using ServedKey = std::pair<PeerId, uint64_t>;
/// kSelf: a call made here; otherwise a call served here.
using CallTimers = std::multimap<TimePoint, std::pair<bool, ServedKey>>;  // first: served here

/// A body that comes in pieces, in order.
struct Assembly {
  std::vector<std::byte> body;
  bool begun = false;
  uint32_t total = 0;

  /// False: the piece does not follow what is there.
  bool append(const CallMessage& message) {
    if (!begun) {
      begun = true;
      total = message.total_bytes;
    }
    if (message.offset != body.size() || message.total_bytes != total) return false;
    body.insert(body.end(), message.piece.begin(), message.piece.end());
    return true;
  }
  bool complete() const { return begun && body.size() == total; }
};

struct CallMade {
  PeerId peer = kSelf;
  bool connected = false;  // `peer` says to whom
  CallCallback callback;
  TimePoint deadline;
  CallTimers::iterator timer;
  Assembly reply;
};

struct CallServed {
  CallMethod method = 0;
  TimePoint deadline;
  CallTimers::iterator timer;
  bool handed = false;    // the handler has it
  bool answered = false;  // the answer is on its way
  Assembly request;
};

/// A body on its way out.
struct CallStream {
  CallMessage header;  // without a piece
  std::vector<std::byte> body;
  uint32_t sent = 0;
  TimePoint deadline;

  bool finished() const { return sent == body.size(); }
};

struct CallPeer {
  NodeIdentity identity;
  std::deque<CallStream> queue;
  uint64_t unsent_bytes = 0;  // handed to the link
};

/// The way to one life of a node.
struct CallLink {
  std::vector<PeerId> peers;
  bool connecting = false;
  struct Waiting {
    uint64_t call = 0;
    CallMethod method = 0;
    std::vector<std::byte> request;
  };
  std::vector<Waiting> waiting;
};

}  // namespace cedar::transport
