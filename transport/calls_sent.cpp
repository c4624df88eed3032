#include <algorithm>

#include "transport/calls_impl.h"

namespace cedar::transport {

using std::chrono::milliseconds;

void Calls::Impl::enqueue(Locked& locked, PeerId peer, CallStream stream) {
  const auto at = peers_.find(peer);
  if (at == peers_.end()) return;  // peer_down ends what belongs to it
  stream.header.total_bytes = static_cast<uint32_t>(stream.body.size());
  at->second.queue.push_back(std::move(stream));
  pump(locked, peer);
}

/// Whether somebody still waits for a stream.
bool Calls::Impl::wanted(PeerId peer, const CallStream& stream) const {
  if (stream.header.type == CallMessage::Type::request) return calls_.count(stream.header.id) != 0;
  return served_.count({peer, stream.header.id}) != 0;
}

void Calls::Impl::pump(Locked& locked, PeerId id) {
  const auto at = peers_.find(id);
  if (at == peers_.end() || closed_) return;
  CallPeer& peer = at->second;
  const size_t piece_bytes = message_bytes_ - CallMessage::kHeaderBytes;
  while (!peer.queue.empty() && peer.unsent_bytes < options_.window_bytes) {
    CallStream stream = std::move(peer.queue.front());
    peer.queue.pop_front();
    if (!wanted(id, stream)) continue;
    CallMessage message = stream.header;
    message.offset = stream.sent;
    message.piece = std::span<const std::byte>(stream.body).subspan(stream.sent);
    message.piece = message.piece.first(std::min(piece_bytes, message.piece.size()));
    const auto left =
        std::chrono::duration_cast<milliseconds>(stream.deadline - Clock::now()).count() + 1;
    message.remaining_ms = static_cast<uint32_t>(std::clamp<int64_t>(left, 1, UINT32_MAX));
    const uint64_t size = message.piece.size() + CallMessage::kHeaderBytes;
    const Status status = transport_->send(id, kCallMessageKind, encode_call(message),
                                           [weak = weak_from_this(), id, size](const Status&) {
                                             // A message that could not be sent is of a peer that is about to be declared down.
                                             if (const auto self = weak.lock())
                                               self->sent(id, size);
                                           });
    if (!status && status.error().code == Errc::overloaded) {
      peer.queue.push_front(std::move(stream));
      stalled_.insert(id);
      wake_.notify_one();
      return;
    }
    const bool is_request = stream.header.type == CallMessage::Type::request;
    if (!status) {
      if (is_request) finish(locked, stream.header.id, status.error());
      continue;
    }
    peer.unsent_bytes += size;
    stream.sent += static_cast<uint32_t>(message.piece.size());
    if (!stream.finished()) {
      peer.queue.push_back(std::move(stream));
    } else if (!is_request) {
      if (const auto served = served_.find({id, stream.header.id}); served != served_.end()) {
        forget(served);
      }
    }
  }
}

void Calls::Impl::sent(PeerId peer, uint64_t bytes) {
  Locked locked(*this);
  const auto at = peers_.find(peer);
  if (at == peers_.end()) return;
  at->second.unsent_bytes -= bytes;
  pump(locked, peer);
}

}  // namespace cedar::transport
