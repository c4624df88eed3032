// Every link has an inbox of closures that other links' threads post and its own progress thread runs. A sender's
// completion travels back the same way, so that it comes on the sender's thread, after the receiver is done with the
// sender's memory.

#include "transport/loopback.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <sys/eventfd.h>
#include <unistd.h>

#include "core/buffer.h"
#include "transport/node_transport.h"
#include "transport/wire.h"

namespace cedar::transport {
namespace {

class LoopbackLink;

/// Outlives its link as long as someone may post. A mutex, because that is any thread.
class Inbox {
 public:
  using Event = std::function<void(LoopbackLink&)>;

  Inbox() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Inbox() { ::close(fd_); }
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  /// False when the link is gone.
  bool post(Event event) {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    events_.push_back(std::move(event));
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);
    return true;
  }
  std::vector<Event> take() {
    uint64_t count;
    [[maybe_unused]] const auto bytes = ::read(fd_, &count, sizeof count);
    std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }
  std::vector<Event> close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    return std::exchange(events_, {});
  }
  bool empty() const {
    std::lock_guard lock(mutex_);
    return events_.empty();
  }
  int fd() const { return fd_; }

 private:
  const int fd_;
  mutable std::mutex mutex_;
  std::vector<Event> events_;
  bool closed_ = false;
};

Error peer_gone() { return make_error(Errc::unavailable, "peer is gone"); }

}  // namespace

class LoopbackHub {
 public:
  Result<uint16_t> listen(uint16_t port, std::shared_ptr<Inbox> inbox) {
    std::lock_guard lock(mutex_);
    if (port == 0) {
      while (listeners_.count(next_port_) != 0) ++next_port_;
      port = next_port_++;
    }
    if (!listeners_.emplace(port, std::move(inbox)).second)
      return make_error(Errc::unavailable, "port " + std::to_string(port) + " is taken");
    return port;
  }
  void leave(uint16_t port) {
    std::lock_guard lock(mutex_);
    listeners_.erase(port);
  }
  std::shared_ptr<Inbox> find(uint16_t port) const {
    std::lock_guard lock(mutex_);
    const auto at = listeners_.find(port);
    return at == listeners_.end() ? nullptr : at->second;
  }
  uint64_t add_region(const MemoryBlock& memory) {
    std::lock_guard lock(mutex_);
    regions_.emplace(++last_region_, memory);
    return last_region_;
  }
  void remove_region(uint64_t region) {
    std::lock_guard lock(mutex_);
    regions_.erase(region);
  }
  const std::byte* base(uint64_t region) const {
    std::lock_guard lock(mutex_);
    const auto at = regions_.find(region);
    return at == regions_.end() ? nullptr : at->second.data;
  }
  /// Copies under the lock, so that the region cannot go meanwhile.
  Status read(uint64_t region, uint64_t offset, Segment target) const {
    std::lock_guard lock(mutex_);
    const auto at = regions_.find(region);
    if (at == regions_.end()) return peer_gone();
    const MemoryBlock& memory = at->second;
    if (offset > memory.bytes || target.bytes > memory.bytes - offset)
      return make_error(Errc::invalid_argument, "range outside of the region");
    std::memcpy(target.data, memory.data + offset, target.bytes);
    return {};
  }

 private:
  mutable std::mutex mutex_;
  std::map<uint16_t, std::shared_ptr<Inbox>> listeners_;
  std::unordered_map<uint64_t, MemoryBlock> regions_;
  uint64_t last_region_ = 0;
  uint16_t next_port_ = 1024;
};

namespace {

class LoopbackLink final : public Link {
 public:
  LoopbackLink(std::shared_ptr<LoopbackHub> hub, bool native_get)
      : hub_(std::move(hub)), native_get_(native_get), inbox_(std::make_shared<Inbox>()) {}
  ~LoopbackLink() override {
    LoopbackLink::stop_listening();
    // What is still in the inbox holds other links' memory: they get it back, and learn that we are gone.
    gone_ = true;
    for (const auto& event : inbox_->close()) event(*this);
    for (const auto& [peer, channel] : channels_) tell_closed(channel);
  }

  Status start(LinkEvents& events, const std::string&, uint16_t port) override {
    events_ = &events;
    CEDAR_TRY(port_, hub_->listen(port, inbox_));
    return {};
  }
  uint16_t listen_port() const override { return port_; }
  void stop_listening() override {
    if (port_ != 0) hub_->leave(port_);
    port_ = 0;
  }

  Result<PeerId> connect(const std::string&, uint16_t port) override {
    const PeerId peer(++last_peer_);
    channels_.emplace(peer, Channel{});
    const auto remote = hub_->find(port);
    const bool posted = remote && remote->post([from = inbox_, peer](LoopbackLink& link) {
      link.accept(from, peer);
    });
    if (!posted) down_later(peer, make_error(Errc::unavailable, "connection refused"));
    return peer;
  }

  void close(PeerId peer) override {
    const auto at = channels_.find(peer);
    if (at == channels_.end() || at->second.closing) return;
    at->second.closing = true;
    tell_closed(at->second);
    later([this, peer] { settle(peer); });
  }
  std::string lanes(PeerId) const override { return "loopback"; }

  void send(PeerId peer, std::vector<std::byte> bytes, Completion done) override {
    const Channel* channel = open_channel(peer);
    const bool posted = channel != nullptr &&
                        channel->inbox->post([to = channel->remote, bytes = std::move(bytes)](
                                                 LoopbackLink& link) { link.receive(to, bytes); });
    if (done) later([done, posted] { done(posted ? Status{} : Status{peer_gone()}); });
  }

  void send_data(PeerId peer, const DataHeader& header, std::vector<ConstSegment> segments,
                 Completion done) override {
    Channel* channel = open_channel(peer);
    const auto answer = [from = inbox_, peer, done](const Status& status) {
      from->post(
          [peer, done, status](LoopbackLink& link) { link.operation_done(peer, done, status); });
    };
    if (channel != nullptr) ++channel->operations;
    const bool posted = channel != nullptr && channel->inbox->post([to = channel->remote, header,
                                                                    segments = std::move(segments),
                                                                    answer](LoopbackLink& link) {
      answer(link.receive_data(to, header, segments));
    });
    if (posted) return;
    if (channel != nullptr) --channel->operations;
    later([done] { done(peer_gone()); });
  }

  bool can_get(PeerId, std::span<const std::byte> key) override {
    return native_get_ && key.size() == sizeof(uint64_t);
  }
  void get(PeerId peer, std::span<const std::byte> key, uint64_t offset, Segment target,
           Completion done) override {
    const Status status = open_channel(peer) == nullptr
                              ? Status{peer_gone()}
                              : hub_->read(ByteReader(key).get<uint64_t>(), offset, target);
    later([done, status] { done(status); });
  }
  const std::byte* peek(std::span<const std::byte> key) const override {
    return key.size() == sizeof(uint64_t) ? hub_->base(ByteReader(key).get<uint64_t>()) : nullptr;
  }

  Result<LinkRegion> map(const MemoryBlock& memory) override {
    LinkRegion region{memory, {}, 0};
    if (memory.data == nullptr) {
      CEDAR_TRY(Buffer buffer, Buffer::zeroed(Device{}, static_cast<int64_t>(memory.bytes)));
      region.memory.data = buffer.data();
      region.handle = hub_->add_region(region.memory);
      buffers_.emplace(region.handle, std::move(buffer));
    } else {
      region.handle = hub_->add_region(memory);
    }
    region.key = ByteWriter().put(region.handle).take();
    return region;
  }
  void unmap(const LinkRegion& region) override {
    hub_->remove_region(region.handle);
    buffers_.erase(region.handle);
  }

  size_t progress() override {
    auto own = std::exchange(later_, {});
    for (const auto& event : own) event();
    const auto events = inbox_->take();
    for (const auto& event : events) event(*this);
    return own.size() + events.size();
  }
  int event_fd() const override { return inbox_->fd(); }
  bool arm() override { return later_.empty() && inbox_->empty(); }

 private:
  struct Channel {
    std::shared_ptr<Inbox> inbox;  // of the other side; null until it has answered
    PeerId remote;                 // our number there
    uint64_t operations = 0;
    bool closing = false;
  };

  void later(std::function<void()> event) { later_.push_back(std::move(event)); }
  void down_later(PeerId peer, const Error& error) {
    later([this, peer, error] {
      const auto at = channels_.find(peer);
      if (at != channels_.end() && !at->second.closing) events_->on_down(peer, error);
    });
  }
  Channel* open_channel(PeerId peer) {
    const auto at = channels_.find(peer);
    return at == channels_.end() || at->second.closing || !at->second.inbox ? nullptr : &at->second;
  }
  static void tell_closed(const Channel& channel) {
    if (!channel.inbox) return;
    channel.inbox->post([to = channel.remote](LoopbackLink& link) { link.remote_closed(to); });
  }

  // Run by the other side's closures, on our thread.
  void accept(const std::shared_ptr<Inbox>& from, PeerId remote) {
    if (gone_) {
      from->post([remote](LoopbackLink& link) { link.remote_closed(remote); });
      return;
    }
    const PeerId peer(++last_peer_);
    channels_.emplace(peer, Channel{from, remote, 0, false});
    from->post(
        [mine = inbox_, peer, remote](LoopbackLink& link) { link.accepted(remote, mine, peer); });
    events_->on_open(peer, true);
  }
  void accepted(PeerId peer, const std::shared_ptr<Inbox>& remote_inbox, PeerId remote) {
    const auto at = channels_.find(peer);
    if (gone_ || at == channels_.end() || at->second.closing) {
      remote_inbox->post([remote](LoopbackLink& link) { link.remote_closed(remote); });
      return;
    }
    at->second.inbox = remote_inbox;
    at->second.remote = remote;
    events_->on_open(peer, false);
  }
  void remote_closed(PeerId peer) {
    if (gone_) return;
    const auto at = channels_.find(peer);
    if (at != channels_.end() && !at->second.closing)
      events_->on_down(peer, make_error(Errc::unavailable, "closed by the peer"));
  }
  void receive(PeerId peer, std::span<const std::byte> bytes) {
    if (gone_) return;
    if (open_channel(peer) == nullptr) {
      events_->on_late();
      return;
    }
    events_->on_message(peer, bytes);
  }
  Status receive_data(PeerId peer, const DataHeader& header,
                      const std::vector<ConstSegment>& segments) {
    if (gone_) return peer_gone();
    if (open_channel(peer) == nullptr) {
      events_->on_late();
      return peer_gone();
    }
    uint64_t bytes = 0;
    for (const ConstSegment& segment : segments) bytes += segment.bytes;
    const auto targets = events_->on_data(peer, header, bytes);
    if (targets.empty()) return {};
    size_t at = 0;
    uint64_t filled = 0;
    for (const ConstSegment& segment : segments) {
      for (uint64_t from = 0; from < segment.bytes;) {
        const uint64_t count = std::min(segment.bytes - from, targets[at].bytes - filled);
        std::memcpy(targets[at].data + filled, segment.data + from, count);
        from += count;
        filled += count;
        if (filled == targets[at].bytes && at + 1 < targets.size()) {
          ++at;
          filled = 0;
        }
      }
    }
    events_->on_data_done(peer, header, {});
    return {};
  }
  void operation_done(PeerId peer, const Completion& done, const Status& status) {
    if (gone_) return;
    done(status);
    const auto at = channels_.find(peer);
    if (at == channels_.end()) return;
    --at->second.operations;
    settle(peer);
  }
  void settle(PeerId peer) {
    const auto at = channels_.find(peer);
    if (at == channels_.end() || !at->second.closing || at->second.operations > 0) return;
    channels_.erase(at);
    events_->on_closed(peer);
  }

  const std::shared_ptr<LoopbackHub> hub_;
  const bool native_get_;
  const std::shared_ptr<Inbox> inbox_;
  LinkEvents* events_ = nullptr;
  uint16_t port_ = 0;
  uint64_t last_peer_ = 0;
  bool gone_ = false;
  std::unordered_map<PeerId, Channel> channels_;
  std::unordered_map<uint64_t, Buffer> buffers_;
  std::vector<std::function<void()>> later_;
};

}  // namespace

std::shared_ptr<LoopbackHub> make_loopback_hub() { return std::make_shared<LoopbackHub>(); }

std::unique_ptr<Link> make_loopback_link(std::shared_ptr<LoopbackHub> hub, bool native_get) {
  return std::make_unique<LoopbackLink>(std::move(hub), native_get);
}

Result<std::unique_ptr<Transport>> make_loopback_transport(const TransportOptions& options,
                                                           std::shared_ptr<LoopbackHub> hub) {
  return make_transport(options, make_loopback_link(std::move(hub)));
}

}  // namespace cedar::transport
