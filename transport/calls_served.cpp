#include "transport/calls_impl.h"

namespace cedar::transport {
namespace {

using std::chrono::milliseconds;

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::optional<Error> Calls::Impl::refusal(const CallMessage& piece) const {
  if (handlers_.count(piece.subject) == 0) {
    return make_error(Errc::unsupported,
                      to_string(self_) + " does not serve method " + std::to_string(piece.subject));
  }
  if (piece.total_bytes > options_.max_call_bytes) {
    return make_error(Errc::invalid_argument, "request of " + std::to_string(piece.total_bytes) +
                                                  " bytes; at most " +
                                                  std::to_string(options_.max_call_bytes));
  }
  if (served_.size() >= options_.max_served ||
      buffered_bytes_ + piece.piece.size() > options_.max_buffered_bytes) {
    return make_error(Errc::overloaded, to_string(self_) + " has " +
                                            std::to_string(served_.size()) + " calls to answer, " +
                                            std::to_string(buffered_bytes_) + " bytes");
  }
  return std::nullopt;
}

void Calls::Impl::request_piece(Locked& locked, PeerId peer, const CallMessage& piece) {
  const ServedKey key{peer, piece.id};
  auto at = served_.find(key);
  if (at == served_.end()) {
    if (piece.offset != 0) return;  // the rest of what was refused or is too late
    // Refusals take room, too, until their peer takes them.
    if (served_.size() >= 2 * uint64_t{options_.max_served}) return;
    const auto refused = refusal(piece);
    const TimePoint deadline = Clock::now() + milliseconds(piece.remaining_ms);
    at = served_.emplace(key, CallServed{}).first;
    at->second.method = piece.subject;
    at->second.deadline = deadline;
    at->second.timer = add_timer(deadline, true, key);
    if (refused) {
      at->second.handed = true;
      locked.after(
          [self = shared_from_this(), key, error = *refused] { self->answer(key, error); });
      return;
    }
  }
  CallServed& served = at->second;
  if (served.handed) return;
  if (buffered_bytes_ + piece.piece.size() > options_.max_buffered_bytes) {
    served.handed = true;
    buffered_bytes_ -= served.request.body.size();
    served.request = {};
    const Error error =
        make_error(Errc::overloaded, to_string(self_) + " has " + std::to_string(buffered_bytes_) +
                                         " bytes of calls in part");
    locked.after([self = shared_from_this(), key, error] { self->answer(key, error); });
    return;
  }
  if (!served.request.append(piece)) {
    ++stats_.bad_messages;
    forget(at);
    return;
  }
  buffered_bytes_ += piece.piece.size();
  if (served.request.complete()) hand_over(locked, key, served);
}

void Calls::Impl::hand_over(Locked& locked, const ServedKey& key, CallServed& served) {
  served.handed = true;
  buffered_bytes_ -= served.request.body.size();
  auto body = std::make_shared<std::vector<std::byte>>(std::move(served.request.body));
  served.request = {};
  const auto known = handlers_.find(served.method);
  if (known == handlers_.end()) {  // it was there when the first piece came
    const Error error = make_error(Errc::unsupported, to_string(self_) + " does not serve method " +
                                                          std::to_string(served.method));
    return locked.after([self = shared_from_this(), key, error] { self->answer(key, error); });
  }
  ++stats_.served;
  CallContext context;
  context.caller = key.first == kSelf ? self_ : peers_.at(key.first).identity;
  context.deadline = served.deadline;
  ++known->second->running;
  locked.after([self = shared_from_this(), key, entry = known->second, context, body] {
    entry->handler(context, std::move(*body),
                   CallReply([weak = self->weak_from_this(), key](auto answer) {
                     if (const auto impl = weak.lock()) impl->answer(key, std::move(answer));
                   }));
    std::lock_guard lock(self->mutex_);
    if (--entry->running == 0) self->idle_.notify_all();
  });
}

void Calls::Impl::forget(std::map<ServedKey, CallServed>::iterator served) {
  timers_.erase(served->second.timer);
  buffered_bytes_ -= served->second.request.body.size();
  served_.erase(served);
}

void Calls::Impl::answer(const ServedKey& key, Result<std::vector<std::byte>> answer) {
  Locked locked(*this);
  const auto at = served_.find(key);
  if (at == served_.end() || at->second.answered) return;
  if (answer && answer->size() > options_.max_call_bytes) {
    answer = make_error(Errc::invalid_argument, "reply of " + std::to_string(answer->size()) +
                                                    " bytes; at most " +
                                                    std::to_string(options_.max_call_bytes));
  }
  if (key.first == kSelf) {
    forget(at);
    return finish(locked, key.second, std::move(answer));
  }
  at->second.answered = true;
  CallStream stream;
  stream.header.type = CallMessage::Type::reply;
  stream.header.id = key.second;
  stream.header.subject = static_cast<uint16_t>(answer ? Errc::ok : answer.error().code);
  stream.deadline = at->second.deadline;
  stream.body = answer ? std::move(*answer) : bytes_of(answer.error().context);
  enqueue(locked, key.first, std::move(stream));
}

}  // namespace cedar::transport
