#include "transport/node_transport.h"

#include <atomic>
#include <future>
#include <mutex>

#include "core/check.h"
#include "core/crc32c.h"
#include "core/log.h"
#include "transport/progress_thread.h"
#include "transport/puller.h"
#include "transport/server.h"

namespace cedar::transport {
namespace {

Error shut_down() { return make_error(Errc::cancelled, "transport is shut down"); }

class NodeTransport final : public Transport, private LinkEvents {
 public:
  NodeTransport(const TransportOptions& options, std::unique_ptr<Link> link,
                std::unique_ptr<ProgressThread> thread)
      : options_(options),
        link_(std::move(link)),
        peers_(options_, *link_, stats_,
               [this](PeerId peer, const Error& error) { peer_lost(peer, error); }),
        puller_(options_, *link_, peers_, book_, stats_),
        server_(options_, *link_, book_, stats_),
        thread_(std::move(thread)) {}
  ~NodeTransport() override { NodeTransport::shutdown(); }

  Status start() {
    CEDAR_CHECK_OK(link_->start(*this, options_.listen_host, options_.listen_port));
    listen_port_ = link_->listen_port();
    ProgressThread::Work work;
    work.progress = [this] { return link_->progress(); };
    work.tick = [this](TimePoint now) { tick(now); };
    work.next = [this] { return next_deadline(); };
    work.arm = [this] { return link_->arm(); };
    work.finished = [this] { return finished(); };
    work.event_fd = link_->event_fd();
    CEDAR_CHECK_OK(thread_->run(std::move(work), options_.spin_rounds));
    running_ = true;
    return {};
  }

  NodeIdentity identity() const override { return options_.identity; }
  uint16_t listen_port() const override { return listen_port_; }

  Result<Region> allocate(uint64_t bytes) override {
    return map(MemoryBlock{nullptr, bytes, {}, 0});
  }
  Result<Region> register_memory(const MemoryBlock& memory) override {
    if (memory.data == nullptr)
      return make_error(Errc::invalid_argument, "memory without an address");
    return map(memory);
  }
  Status unregister(RegionId region) override {
    return call<Status>([this, region]() -> Status {
      CEDAR_TRY(const LinkRegion removed, book_.remove(region));
      link_->unmap(removed);
      return {};
    });
  }

  void connect(const PeerAddress& address, std::optional<NodeIdentity> expected, TimePoint deadline,
               ConnectCallback callback) override {
    const bool posted = post([this, address, expected, deadline, callback] {
      if (stopping_) {
        callback(shut_down());
      } else {
        peers_.connect(address, expected, deadline, callback, Clock::now());
      }
    });
    if (!posted) callback(shut_down());
  }
  void disconnect(PeerId peer) override {
    post([this, peer] { peers_.disconnect(peer, make_error(Errc::cancelled, "disconnected")); });
  }
  std::vector<PeerInfo> peers() const override {
    std::lock_guard lock(published_mutex_);
    return published_peers_;
  }

  Result<RegionDescriptor> offer(OfferRequest request, LeaseCallback on_end) override;
  void revoke(LeaseId lease) override {
    book_.end(lease, LeaseEnd::revoked);
    thread_->wake();
  }

  Result<TransferId> pull(PullRequest request, Completion callback) override;
  void cancel(TransferId transfer) override {
    post([this, transfer] {
      puller_.cancel(transfer, make_error(Errc::cancelled, "pull cancelled"));
    });
  }
  void release(const NodeIdentity& owner, LeaseId lease) override {
    post([this, owner, lease] {
      if (owner == options_.identity) {
        book_.end(lease, LeaseEnd::released);
      } else if (const auto peer = peers_.find(owner)) {
        link_->send(*peer, encode(Release{owner.generation, lease}), {});
      }
    });
  }
  std::span<const std::byte> view(const RegionDescriptor& source, size_t range_idx) const override {
    if (range_idx >= source.ranges.size()) return {};
    const std::byte* base = link_->peek(source.key);
    if (source.owner == options_.identity) {
      const auto own = book_.find(source.region);
      base = own ? own->memory.data : nullptr;
    }
    if (base == nullptr) return {};
    return {base + source.ranges[range_idx].offset, source.ranges[range_idx].bytes};
  }

  Result<InPlaceRead> read_in_place(const RegionDescriptor& source) override;
  Status send(PeerId peer, uint16_t kind, std::vector<std::byte> bytes, Completion done) override;
  TransportStats stats() const override {
    std::lock_guard lock(published_mutex_);
    TransportStats stats = published_;
    book_.fill(stats);
    return stats;
  }
  void shutdown() override;

 private:
  // Events of the link.
  void on_open(PeerId peer, bool accepted) override {
    if (stopping_ && accepted) {
      link_->close(peer);
    } else {
      peers_.opened(peer, accepted, Clock::now());
    }
  }
  void on_message(PeerId peer, std::span<const std::byte> bytes) override;
  std::vector<Segment> on_data(PeerId peer, const DataHeader& header, uint64_t bytes) override {
    if (!peers_.ready(peer)) {
      ++stats_.late_messages;
      return {};
    }
    peers_.heard(peer, Clock::now());
    return puller_.data(peer, header, bytes);
  }
  void on_data_done(PeerId peer, const DataHeader& header, Status status) override {
    peers_.heard(peer, Clock::now());
    puller_.data_done(peer, header, status);
  }
  void on_down(PeerId peer, const Error& error) override { peers_.drop(peer, error); }
  void on_closed(PeerId peer) override { peers_.closed(peer); }
  void on_late() override { ++stats_.late_messages; }

  void peer_lost(PeerId peer, const Error& error) {
    puller_.peer_lost(peer, error);
    server_.peer_lost(peer);
  }

  Result<Region> map(const MemoryBlock& memory);
  void tick(TimePoint now);
  std::optional<TimePoint> next_deadline() const;
  bool finished();
  void publish();
  bool post(std::function<void()> command) { return thread_->post(std::move(command)); }

  /// Runs `function` on the progress thread and waits; there, or after its end, runs it at once.
  template <class T, class Function>
  T call(Function function) {
    if (thread_->on_thread()) return function();
    std::promise<T> promise;
    if (!post([&] { promise.set_value(function()); })) return shut_down();
    return promise.get_future().get();
  }

  const TransportOptions options_;
  const std::unique_ptr<Link> link_;
  uint16_t listen_port_ = 0;
  mutable RegionBook book_;
  TransportStats stats_;  // of the progress thread
  PeerTable peers_;
  Puller puller_;
  Server server_;
  bool stopping_ = false;  // progress thread
  TimePoint stop_deadline_{};

  std::atomic<uint64_t> last_transfer_{0};
  std::atomic<uint32_t> unfinished_pulls_{0};
  std::atomic<uint32_t> unsent_messages_{0};
  std::atomic<uint64_t> unsent_bytes_{0};
  std::atomic<bool> closed_{false};

  // A mutex, because readers must not wait for the progress thread; held for one copy.
  mutable std::mutex published_mutex_;
  TransportStats published_;
  std::vector<PeerInfo> published_peers_;
  uint64_t published_version_ = 0;  // progress thread

  std::mutex shutdown_mutex_;  // one caller of shutdown() joins, others wait for it
  bool running_ = false;
  std::unique_ptr<ProgressThread> thread_;
};

Result<Region> NodeTransport::map(const MemoryBlock& memory) {
  if (memory.bytes == 0) return make_error(Errc::invalid_argument, "region of 0 bytes");
  if (memory.kind != MemoryKind::host)
    return make_error(Errc::unsupported, "device memory; stage through pinned host memory");
  return call<Result<Region>>([this, memory]() -> Result<Region> {
    if (stopping_) return shut_down();
    CEDAR_TRY(const LinkRegion mapped, link_->map(memory));
    return Region{book_.add(mapped), mapped.memory};
  });
}

Result<RegionDescriptor> NodeTransport::offer(OfferRequest request, LeaseCallback on_end) {
  CEDAR_TRY(const LinkRegion region, book_.find(request.region));
  if (request.ranges.empty() || request.ranges.size() > RegionDescriptor::kMaxRanges) {
    return make_error(Errc::invalid_argument, "ranges: expected 1 to " +
                                                  std::to_string(RegionDescriptor::kMaxRanges) +
                                                  ", got " + std::to_string(request.ranges.size()));
  }
  for (ByteRange& range : request.ranges) {
    if (range.bytes == 0 || range.bytes > region.memory.bytes ||
        range.offset > region.memory.bytes - range.bytes) {
      return make_error(Errc::invalid_argument, "range of " + std::to_string(range.bytes) +
                                                    " bytes at " + std::to_string(range.offset) +
                                                    " is not in the region of " +
                                                    std::to_string(region.memory.bytes));
    }
    if (request.checksums) range.crc32c = crc32c({region.memory.data + range.offset, range.bytes});
  }
  RegionDescriptor descriptor{options_.identity,  request.region, LeaseId(0),
                              region.memory.kind, region.key,     request.ranges};
  if (!request.lease_deadline) {
    book_.publish(request.region);
    return descriptor;
  }
  CEDAR_TRY(descriptor.lease, book_.grant(request.region, std::move(request.ranges),
                                          *request.lease_deadline, std::move(on_end)));
  thread_->wake();
  return descriptor;
}

Result<TransferId> NodeTransport::pull(PullRequest request, Completion callback) {
  if (closed_) return shut_down();
  if (unfinished_pulls_.fetch_add(1) >= options_.queue_pulls) {
    --unfinished_pulls_;
    return make_error(Errc::overloaded,
                      std::to_string(options_.queue_pulls) + " pulls are unfinished");
  }
  const TransferId transfer(++last_transfer_);
  auto shared = std::make_shared<PullRequest>(std::move(request));
  const bool posted = post([this, transfer, shared, callback = std::move(callback)] {
    puller_.start(
        transfer, std::move(*shared),
        [this, callback](const Status& status) {
          --unfinished_pulls_;
          if (callback) callback(status);
        },
        Clock::now());
    if (stopping_) puller_.cancel(transfer, shut_down());
  });
  if (posted) return transfer;
  --unfinished_pulls_;
  return shut_down();
}

Result<InPlaceRead> NodeTransport::read_in_place(const RegionDescriptor& source) {
  if (source.owner.node != options_.identity.node) {
    return make_error(Errc::unsupported, "memory of " + to_string(source.owner));
  }
  if (source.owner != options_.identity) {
    return make_error(Errc::stale_generation,
                      to_string(source.owner) + " is " + to_string(options_.identity) + " now");
  }
  CEDAR_TRY(const auto segments,
            book_.start_reading(source.region, source.lease, source.ranges, Clock::now()));
  std::vector<std::span<const std::byte>> ranges;
  ranges.reserve(segments.size());
  for (const ConstSegment& segment : segments) ranges.emplace_back(segment.data, segment.bytes);
  return InPlaceRead(std::move(ranges), [this, region = source.region, lease = source.lease] {
    book_.finish_reading(region, lease);
    thread_->wake();  // the lease's callback may be due
  });
}

Status NodeTransport::send(PeerId peer, uint16_t kind, std::vector<std::byte> bytes,
                           Completion done) {
  if (closed_) return shut_down();
  if (bytes.size() > options_.max_message_bytes) {
    return make_error(Errc::invalid_argument, "message of " + std::to_string(bytes.size()) +
                                                  " bytes; at most " +
                                                  std::to_string(options_.max_message_bytes));
  }
  const uint64_t size = bytes.size();
  const auto unsent = [this, size](int change) {
    unsent_messages_ += static_cast<uint32_t>(change);
    unsent_bytes_ += change > 0 ? size : ~size + 1;
  };
  unsent(1);
  if (unsent_messages_ > options_.queue_messages || unsent_bytes_ > options_.queue_message_bytes) {
    unsent(-1);
    return make_error(Errc::overloaded, std::to_string(options_.queue_messages) + " messages or " +
                                            std::to_string(options_.queue_message_bytes) +
                                            " bytes are unsent");
  }
  auto message = encode(UserMessage{kind, bytes});
  const bool posted = post([this, peer, message = std::move(message), done, unsent]() mutable {
    auto finish = [done, unsent](const Status& status) {
      unsent(-1);
      if (done) done(status);
    };
    if (!peers_.ready(peer)) {
      finish(make_error(Errc::unavailable, "peer " + std::to_string(peer.value) + " is gone"));
      return;
    }
    ++stats_.messages_sent;
    link_->send(peer, std::move(message), finish);
  });
  if (posted) return {};
  unsent(-1);
  return shut_down();
}

void NodeTransport::on_message(PeerId peer, std::span<const std::byte> bytes) {
  const auto message = decode(bytes);
  if (!message) {
    ++stats_.bad_messages;
    peers_.drop(peer, message.error());
    return;
  }
  const TimePoint now = Clock::now();
  if (!peers_.accept(peer, *message, now)) return;
  if (const auto* request = std::get_if<PartRequest>(&*message)) {
    server_.request(peer, *request, now);
  } else if (const auto* refused = std::get_if<PartRefused>(&*message)) {
    puller_.refused(peer, *refused);
  } else if (const auto* confirm = std::get_if<Confirm>(&*message)) {
    server_.confirm(peer, *confirm, now);
  } else if (const auto* confirmed = std::get_if<Confirmed>(&*message)) {
    puller_.confirmed(peer, *confirmed);
  } else if (const auto* release = std::get_if<Release>(&*message)) {
    server_.release(*release);
  } else if (const auto* user = std::get_if<UserMessage>(&*message)) {
    ++stats_.messages_received;
    if (options_.handlers.on_message) options_.handlers.on_message(peer, user->kind, user->bytes);
  }
}

void NodeTransport::tick(TimePoint now) {
  peers_.tick(now);
  puller_.tick(now);
  book_.expire(now);
  for (const auto& callback : book_.take_ended()) callback();
  publish();
}

std::optional<TimePoint> NodeTransport::next_deadline() const {
  std::optional<TimePoint> next = peers_.next_deadline();
  for (const auto& other : {puller_.next_deadline(), book_.next_expiry()}) {
    if (other && (!next || *other < *next)) next = other;
  }
  if (stopping_ && (!next || stop_deadline_ < *next)) next = stop_deadline_;
  return next;
}

void NodeTransport::publish() {
  std::lock_guard lock(published_mutex_);
  stats_.connections = peers_.count();
  published_ = stats_;
  if (std::exchange(published_version_, peers_.version()) != peers_.version())
    published_peers_ = peers_.list();
}

bool NodeTransport::finished() {
  if (!stopping_) return false;  // the command that stops has not run yet
  if (peers_.empty() && puller_.empty()) return true;
  if (Clock::now() < stop_deadline_) return false;
  log::error("transport", "shutdown gave up on connections",
             {{"connections", int64_t(peers_.count())}});
  return true;
}

void NodeTransport::shutdown() {
  std::lock_guard lock(shutdown_mutex_);
  if (!running_) return;
  CEDAR_ASSERT(!thread_->on_thread(), "shutdown from a callback");
  running_ = false;
  closed_ = true;
  post([this] {
    stopping_ = true;
    link_->stop_listening();
    stop_deadline_ = Clock::now() + std::chrono::milliseconds(options_.shutdown_timeout_ms);
    puller_.cancel_all(shut_down());
    peers_.disconnect_all(shut_down());
    book_.end_all();
  });
  thread_->stop_and_join();
  for (const auto& callback : book_.take_ended()) callback();
  for (const LinkRegion& region : book_.remove_all()) link_->unmap(region);
}

}  // namespace

Result<std::unique_ptr<Transport>> make_transport(const TransportOptions& options,
                                                  std::unique_ptr<Link> link) {
  CEDAR_CHECK_OK(validate(options));
  CEDAR_TRY(auto thread, ProgressThread::create());
  auto transport = std::make_unique<NodeTransport>(options, std::move(link), std::move(thread));
  CEDAR_CHECK_OK(transport->start());
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace cedar::transport
