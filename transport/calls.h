#pragma once
// Requests with replies between nodes of the data plane, over Transport::send. Every node may call and serve. What does
// not fit one message is cut; several calls to a peer take turns, so a long one does not hold up a short one.
//
// Threads: every method may be called from any thread, but for install(), attach() and shutdown(). Callbacks and
// handlers run on the transport's progress thread or on a thread of this class, not inside call() (but for one after shutdown()),
// and must not block.

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "transport/options.h"
#include "transport/types.h"

namespace cedar::transport {

class Transport;

/// What is asked for. The rooms above give out the numbers.
using CallMethod = uint16_t;

struct CallTarget {
  std::string host;  // numeric
  uint16_t port = 0;
  NodeIdentity identity;  // this life of the node and no other
};

struct CallOptions {
  uint64_t max_call_bytes = 16u << 20;       // of one request or one reply
  uint32_t max_calls = 4096;                 // made here and unanswered; one more: overloaded
  uint32_t max_served = 4096;                // received here and unanswered; one more: overloaded
  uint64_t max_buffered_bytes = 256u << 20;  // of requests and replies that have come in part
  uint64_t window_bytes = 1u << 20;          // handed to the link and unsent, per peer
  uint32_t connect_timeout_ms = 2000;
};

struct CallStats {
  uint64_t calls = 0;             // made here
  uint64_t calls_failed = 0;      // of these, without a good reply
  uint64_t calls_unanswered = 0;  // gauge
  uint64_t served = 0;            // handed to a handler here
  uint64_t serving = 0;           // gauge
  uint64_t buffered_bytes = 0;    // gauge
  uint64_t late_replies = 0;      // to calls that had ended
  uint64_t bad_messages = 0;
};

using CallCallback = std::function<void(Result<std::vector<std::byte>>)>;

/// The right and the duty to answer one call. May be kept, moved to any thread, and outlive everything else here. One
/// that is dropped answers with `internal`.
class CallReply {
 public:
  using Send = std::function<void(Result<std::vector<std::byte>>)>;
  explicit CallReply(Send send) : send_(std::move(send)) {}
  CallReply(CallReply&& other) noexcept : send_(std::exchange(other.send_, nullptr)) {}
  CallReply& operator=(CallReply&& other) noexcept;
  ~CallReply();

  /// Once; what comes after the first answer is ignored. An answer nobody waits for any more is dropped.
  void operator()(Result<std::vector<std::byte>> answer);

 private:
  Send send_;
};

struct CallContext {
  NodeIdentity caller;
  TimePoint deadline;  // nobody waits any longer
};

class Calls {
 public:
  /// `request` may be taken as std::span<const std::byte>, too; that is good until the handler returns.
  using Handler =
      std::function<void(const CallContext&, std::vector<std::byte> request, CallReply)>;
  using PeerDown = std::function<void(const NodeIdentity&, const Error&)>;

  explicit Calls(const CallOptions& options = {});
  ~Calls();
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  /// Before the transport is made: puts this object's handlers in front of those that are there.
  void install(TransportOptions& options);
  /// After the transport was made, which lives until shutdown() has returned.
  void attach(Transport& transport);

  /// Replaces an earlier handler of the method; an empty one takes it away. When it returns the earlier one does not run
  /// any more: not from a handler.
  void serve(CallMethod method, Handler handler);
  /// The last connection to this life of a node has ended. On the progress thread. Watchers stay.
  void watch_peers(PeerDown watcher);

  /// The callback comes exactly once, at the latest at the deadline. Connects if need be. A node may call itself. Errors
  /// there: those of the handler, unavailable (peer), stale_generation, deadline_exceeded, overloaded (too many calls,
  /// here or there), invalid_argument (size), unsupported (nobody serves the method), cancelled (shutdown).
  void call(const CallTarget& target, CallMethod method, std::vector<std::byte> request,
            TimePoint deadline, CallCallback callback);

  CallStats stats() const;

  /// Ends every call, with `cancelled`. When it returns, no handler and no callback runs any more. Idempotent; not from a
  /// callback.
  void shutdown();

  class Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace cedar::transport
