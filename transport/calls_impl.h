#pragma once
// The inside of Calls: calls.cpp (calls made here, the courier), calls_served.cpp (calls served here), calls_sent.cpp (what
// leaves).

#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>

#include "transport/call_tables.h"
#include "transport/transport.h"

namespace cedar::transport {

// One mutex over all tables, because the progress thread, the courier and callers meet there; it is held for table work
// and for handing messages to the transport, which only queues them. Handlers and callbacks run after it.
class Calls::Impl : public std::enable_shared_from_this<Calls::Impl> {
 public:
  explicit Impl(const CallOptions& options) : options_(options) {}

  void install(TransportOptions& transport);
  void attach(Transport& transport);
  void serve(CallMethod method, Handler handler);
  void watch_peers(PeerDown watcher);
  void call(const CallTarget& target, CallMethod method, std::vector<std::byte> request,
            TimePoint deadline, CallCallback callback);
  CallStats stats() const;
  void shutdown();

 private:
  using Identity = std::pair<uint32_t, uint64_t>;
  static Identity key_of(const NodeIdentity& node) { return {node.node.value, node.generation}; }

  /// The lock, and what has to be done once it is free.
  class Locked {
   public:
    explicit Locked(const Impl& impl) : impl_(impl), lock_(impl.mutex_) {}
    ~Locked() {
      if (after_.empty()) return;
      ++impl_.jobs_running_;
      lock_.unlock();
      for (const auto& job : after_) job();
      after_.clear();
      lock_.lock();
      if (--impl_.jobs_running_ == 0) impl_.idle_.notify_all();
    }
    void after(std::function<void()> job) { after_.push_back(std::move(job)); }
    bool has_work() const { return !after_.empty(); }
    std::unique_lock<std::mutex>& lock() { return lock_; }

   private:
    const Impl& impl_;
    std::unique_lock<std::mutex> lock_;
    std::vector<std::function<void()>> after_;
  };

  // From the transport.
  void peer_up(const PeerInfo& info);
  void peer_down(const PeerInfo& info, const Error& error);
  void message(PeerId peer, std::span<const std::byte> bytes);
  void connected(const NodeIdentity& identity, const Status& status);

  // REQUIRES: locked.
  void request_piece(Locked& locked, PeerId peer, const CallMessage& piece);
  void reply_piece(Locked& locked, PeerId peer, const CallMessage& piece);
  std::optional<Error> refusal(const CallMessage& piece) const;
  void hand_over(Locked& locked, const ServedKey& key, CallServed& served);
  void finish(Locked& locked, uint64_t call, Result<std::vector<std::byte>> answer);
  void forget(std::map<ServedKey, CallServed>::iterator served);
  void enqueue(Locked& locked, PeerId peer, CallStream stream);
  void ask(Locked& locked, uint64_t call, PeerId peer, CallMethod method,
           std::vector<std::byte> request);
  void pump(Locked& locked, PeerId id);
  bool wanted(PeerId peer, const CallStream& stream) const;
  CallTimers::iterator add_timer(TimePoint deadline, bool served, const ServedKey& key);

  void answer(const ServedKey& key, Result<std::vector<std::byte>> answer);
  void sent(PeerId peer, uint64_t bytes);
  void run();  // the courier: deadlines, failures before a call began, calls of a node to itself

  const CallOptions options_;
  NodeIdentity self_;
  uint32_t message_bytes_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  mutable std::condition_variable idle_;  // a job or a handler has ended
  mutable uint32_t jobs_running_ = 0;     // handlers and callbacks among them
  Transport* transport_ = nullptr;
  bool closed_ = false;
  uint64_t last_call_ = 0;
  std::unordered_map<uint64_t, CallMade> calls_;
  std::map<ServedKey, CallServed> served_;
  std::map<Identity, CallLink> links_;
  std::unordered_map<PeerId, CallPeer> peers_;
  struct MethodHandler {
    Handler handler;
    uint32_t running = 0;
  };
  std::map<CallMethod, std::shared_ptr<MethodHandler>> handlers_;
  std::vector<std::shared_ptr<const PeerDown>> watchers_;
  CallTimers timers_;
  std::set<PeerId> stalled_;
  std::vector<std::function<void()>> jobs_;
  CallStats stats_;
  uint64_t buffered_bytes_ = 0;
  std::thread courier_;
};

}  // namespace cedar::transport
