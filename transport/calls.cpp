#include "transport/calls.h"

#include <algorithm>

#include "core/check.h"
#include "transport/calls_impl.h"

namespace cedar::transport {
namespace {

using std::chrono::milliseconds;

/// How long a peer's queue rests after the transport had no room for its messages.
constexpr auto kStallPause = milliseconds(5);

Error shut_down() { return make_error(Errc::cancelled, "calls are shut down"); }

}  // namespace

void Calls::Impl::install(TransportOptions& transport) {
  self_ = transport.identity;
  message_bytes_ = transport.max_message_bytes;
  CEDAR_ASSERT(message_bytes_ > CallMessage::kHeaderBytes, std::to_string(message_bytes_));
  TransportHandlers& handlers = transport.handlers;
  const auto weak = weak_from_this();
  handlers.on_peer_up = [weak, next = handlers.on_peer_up](const PeerInfo& info) {
    if (const auto self = weak.lock()) self->peer_up(info);
    if (next) next(info);
  };
  handlers.on_peer_down = [weak, next = handlers.on_peer_down](const PeerInfo& info,
                                                               const Error& error) {
    if (const auto self = weak.lock()) self->peer_down(info, error);
    if (next) next(info, error);
  };
  handlers.on_message = [weak, next = handlers.on_message](PeerId peer, uint16_t kind,
                                                           std::span<const std::byte> bytes) {
    if (kind == kCallMessageKind) {
      if (const auto self = weak.lock()) self->message(peer, bytes);
    } else if (next) {
      next(peer, kind, bytes);
    }
  };
}

void Calls::Impl::attach(Transport& transport) {
  Locked locked(*this);
  CEDAR_ASSERT(message_bytes_ > 0, "install() comes before the transport");
  transport_ = &transport;
  courier_ = std::thread([this] { run(); });
}

void Calls::Impl::serve(CallMethod method, Handler handler) {
  Locked locked(*this);
  const auto known = handlers_.find(method);
  const auto former = known == handlers_.end() ? nullptr : known->second;
  if (handler) {
    handlers_[method] = std::make_shared<MethodHandler>(MethodHandler{std::move(handler), 0});
  } else {
    handlers_.erase(method);
  }
  idle_.wait(locked.lock(), [&] { return !former || former->running == 0; });
}

void Calls::Impl::watch_peers(PeerDown watcher) {
  Locked locked(*this);
  watchers_.push_back(std::make_shared<const PeerDown>(std::move(watcher)));
}

void Calls::Impl::call(const CallTarget& target, CallMethod method, std::vector<std::byte> request,
                       TimePoint deadline, CallCallback callback) {
  bool connect = false;
  {
    Locked locked(*this);
    ++stats_.calls;
    const auto refuse = [&](Error error) {
      ++stats_.calls_failed;
      auto job = [callback = std::move(callback), error = std::move(error)] { callback(error); };
      if (closed_ || transport_ == nullptr) return locked.after(std::move(job));
      jobs_.push_back(std::move(job));
      wake_.notify_one();
    };
    if (closed_ || transport_ == nullptr) return refuse(shut_down());
    if (request.size() > options_.max_call_bytes) {
      return refuse(make_error(Errc::invalid_argument,
                               "request of " + std::to_string(request.size()) + " bytes; at most " +
                                   std::to_string(options_.max_call_bytes)));
    }
    if (calls_.size() >= options_.max_calls) {
      return refuse(make_error(Errc::overloaded,
                               std::to_string(options_.max_calls) + " calls are unanswered"));
    }
    const uint64_t id = ++last_call_;
    CallMade& made = calls_[id];
    made.callback = std::move(callback);
    made.deadline = deadline;
    made.timer = add_timer(deadline, false, {kSelf, id});
    if (target.identity == self_) {
      made.connected = true;
      jobs_.push_back([this, id, method, request = std::move(request)] {
        CallMessage whole;
        whole.id = id;
        whole.subject = method;
        whole.total_bytes = static_cast<uint32_t>(request.size());
        whole.piece = request;
        Locked inside(*this);
        const auto call = calls_.find(id);
        if (call == calls_.end()) return;
        const auto left = call->second.deadline - Clock::now();
        whole.remaining_ms = static_cast<uint32_t>(
            std::max<int64_t>(1, std::chrono::duration_cast<milliseconds>(left).count() + 1));
        request_piece(inside, kSelf, whole);
      });
      wake_.notify_one();
      return;
    }
    CallLink& link = links_[key_of(target.identity)];
    if (!link.peers.empty()) return ask(locked, id, link.peers.back(), method, std::move(request));
    link.waiting.push_back({id, method, std::move(request)});
    connect = !std::exchange(link.connecting, true);
  }
  if (!connect) return;
  // Not under the mutex: a transport that has been shut down calls back at once. It lives until shutdown(), and this
  // node does not end while somebody calls.
  transport_->connect({target.host, target.port}, target.identity,
                      Clock::now() + milliseconds(options_.connect_timeout_ms),
                      [weak = weak_from_this(), identity = target.identity](const auto& peer) {
                        const auto self = weak.lock();
                        if (self) self->connected(identity, peer ? Status{} : peer.error());
                      });
}

// A good connection has been, or is about to be, announced by peer_up.
void Calls::Impl::connected(const NodeIdentity& identity, const Status& status) {
  Locked locked(*this);
  const auto link = links_.find(key_of(identity));
  if (link == links_.end()) return;
  link->second.connecting = false;
  if (status) return;
  const auto waiting = std::exchange(link->second.waiting, {});
  if (link->second.peers.empty()) links_.erase(link);
  for (const auto& call : waiting) finish(locked, call.call, status.error());
}

void Calls::Impl::peer_up(const PeerInfo& info) {
  Locked locked(*this);
  if (closed_) return;
  peers_[info.peer].identity = info.identity;
  CallLink& link = links_[key_of(info.identity)];
  link.peers.push_back(info.peer);
  for (CallLink::Waiting& call : std::exchange(link.waiting, {})) {
    ask(locked, call.call, info.peer, call.method, std::move(call.request));
  }
}

void Calls::Impl::peer_down(const PeerInfo& info, const Error& error) {
  Locked locked(*this);
  peers_.erase(info.peer);
  stalled_.erase(info.peer);
  std::vector<uint64_t> lost;
  for (const auto& [id, call] : calls_) {
    if (call.connected && call.peer == info.peer) lost.push_back(id);
  }
  for (const uint64_t id : lost) {
    finish(locked, id, make_error(Errc::unavailable, error.context));
  }
  for (auto it = served_.lower_bound({info.peer, 0});
       it != served_.end() && it->first.first == info.peer;) {
    forget(it++);
  }
  const auto link = links_.find(key_of(info.identity));
  if (link == links_.end()) return;
  auto& peers = link->second.peers;
  peers.erase(std::remove(peers.begin(), peers.end(), info.peer), peers.end());
  if (!peers.empty()) return;
  if (!link->second.connecting) links_.erase(link);
  for (const auto& watcher : watchers_) {
    locked.after([watcher, identity = info.identity, error] { (*watcher)(identity, error); });
  }
}

void Calls::Impl::message(PeerId peer, std::span<const std::byte> bytes) {
  const auto piece = decode_call(bytes);
  Locked locked(*this);
  if (closed_) return;
  if (!piece || peers_.count(peer) == 0) {
    ++stats_.bad_messages;
  } else if (piece->type == CallMessage::Type::request) {
    request_piece(locked, peer, *piece);
  } else {
    reply_piece(locked, peer, *piece);
  }
}

void Calls::Impl::reply_piece(Locked& locked, PeerId peer, const CallMessage& piece) {
  const auto at = calls_.find(piece.id);
  if (at == calls_.end() || !at->second.connected || at->second.peer != peer) {
    if (piece.offset == 0) ++stats_.late_replies;
    return;
  }
  CallMade& call = at->second;
  if (piece.total_bytes > options_.max_call_bytes ||
      buffered_bytes_ + piece.piece.size() > options_.max_buffered_bytes) {
    return finish(locked, piece.id,
                  make_error(Errc::overloaded, "no room for a reply of " +
                                                   std::to_string(piece.total_bytes) + " bytes"));
  }
  if (!call.reply.append(piece)) {
    ++stats_.bad_messages;
    return finish(locked, piece.id, make_error(Errc::internal, "a reply with a gap"));
  }
  buffered_bytes_ += piece.piece.size();
  if (!call.reply.complete()) return;
  if (piece.subject == static_cast<uint16_t>(Errc::ok)) {
    buffered_bytes_ -= call.reply.body.size();
    auto body = std::move(call.reply.body);
    call.reply = {};
    return finish(locked, piece.id, std::move(body));
  }
  // A newer peer may know more codes than this one.
  const bool known = piece.subject <= static_cast<uint16_t>(Errc::internal);
  Error error{known ? static_cast<Errc>(piece.subject) : Errc::internal, {}};
  for (const std::byte c : call.reply.body) error.context += static_cast<char>(c);
  finish(locked, piece.id, std::move(error));
}

void Calls::Impl::finish(Locked& locked, uint64_t call, Result<std::vector<std::byte>> answer) {
  const auto at = calls_.find(call);
  if (at == calls_.end()) return;
  timers_.erase(at->second.timer);
  buffered_bytes_ -= at->second.reply.body.size();
  if (!answer) ++stats_.calls_failed;
  auto shared = std::make_shared<Result<std::vector<std::byte>>>(std::move(answer));
  locked.after(
      [callback = std::move(at->second.callback), shared] { callback(std::move(*shared)); });
  calls_.erase(at);
}

void Calls::Impl::ask(Locked& locked, uint64_t call, PeerId peer, CallMethod method,
                      std::vector<std::byte> request) {
  const auto at = calls_.find(call);
  if (at == calls_.end()) return;  // its deadline has passed
  at->second.peer = peer;
  at->second.connected = true;
  CallStream stream;
  stream.header.type = CallMessage::Type::request;
  stream.header.id = call;
  stream.header.subject = method;
  stream.deadline = at->second.deadline;
  stream.body = std::move(request);
  enqueue(locked, peer, std::move(stream));
}

CallTimers::iterator Calls::Impl::add_timer(TimePoint deadline, bool served, const ServedKey& key) {
  const auto timer = timers_.emplace(deadline, std::pair(served, key));
  if (timer == timers_.begin()) wake_.notify_one();
  return timer;
}

void Calls::Impl::run() {
  while (true) {
    Locked locked(*this);
    if (closed_) return;
    for (auto& job : std::exchange(jobs_, {})) locked.after(std::move(job));
    const TimePoint now = Clock::now();
    while (!timers_.empty() && timers_.begin()->first <= now) {
      const auto [is_served, key] = timers_.begin()->second;
      if (is_served) {
        forget(served_.find(key));
      } else {
        finish(locked, key.second,
               make_error(Errc::deadline_exceeded, "no reply before the call's deadline"));
      }
    }
    for (const PeerId peer : std::exchange(stalled_, {})) pump(locked, peer);
    if (locked.has_work()) continue;
    TimePoint next = stalled_.empty() ? TimePoint::max() : now + kStallPause;
    if (!timers_.empty()) next = std::min(next, timers_.begin()->first);
    if (next == TimePoint::max()) {
      wake_.wait(locked.lock());
    } else {
      wake_.wait_until(locked.lock(), next);
    }
  }
}

CallStats Calls::Impl::stats() const {
  Locked locked(*this);
  CallStats stats = stats_;
  stats.calls_unanswered = calls_.size();
  stats.serving = served_.size();
  stats.buffered_bytes = buffered_bytes_;
  return stats;
}

void Calls::Impl::shutdown() {
  {
    Locked locked(*this);
    if (std::exchange(closed_, true)) return;
    while (!calls_.empty()) finish(locked, calls_.begin()->first, shut_down());
    while (!served_.empty()) forget(served_.begin());
    for (auto& job : std::exchange(jobs_, {})) locked.after(std::move(job));
    handlers_.clear();
    watchers_.clear();
    wake_.notify_one();
  }
  if (courier_.joinable()) courier_.join();
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return jobs_running_ == 0; });
}

CallReply& CallReply::operator=(CallReply&& other) noexcept {
  std::swap(send_, other.send_);
  return *this;
}

CallReply::~CallReply() {
  if (send_) send_(make_error(Errc::internal, "the handler gave no answer"));
}

void CallReply::operator()(Result<std::vector<std::byte>> answer) {
  if (const auto send = std::exchange(send_, nullptr)) send(std::move(answer));
}

Calls::Calls(const CallOptions& options) : impl_(std::make_shared<Impl>(options)) {}
Calls::~Calls() { impl_->shutdown(); }
void Calls::install(TransportOptions& options) { impl_->install(options); }
void Calls::attach(Transport& transport) { impl_->attach(transport); }
void Calls::serve(CallMethod method, Handler handler) { impl_->serve(method, std::move(handler)); }
void Calls::watch_peers(PeerDown watcher) { impl_->watch_peers(std::move(watcher)); }
void Calls::call(const CallTarget& target, CallMethod method, std::vector<std::byte> request,
                 TimePoint deadline, CallCallback callback) {
  impl_->call(target, method, std::move(request), deadline, std::move(callback));
}
CallStats Calls::stats() const { return impl_->stats(); }
void Calls::shutdown() { impl_->shutdown(); }

}  // namespace cedar::transport
