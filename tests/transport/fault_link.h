#pragma once
// A link between transport and back end that loses, holds or delays what is sent, on command. It keeps the link's contract: what
// it holds is completed when the connection closes, before on_closed.

#include <atomic>
#include <memory>
#include <thread>
#include <unordered_map>

#include "transport/link.h"

namespace cedar::test {

/// Shared by a test and one link. Any thread.
struct Faults {
  std::atomic<bool> cut{false};        // nothing leaves any more, and nothing says so: a partition
  std::atomic<bool> hold_data{false};  // bulk data waits here while set
  std::atomic<bool> drop_data{false};  // bulk data vanishes; its sender believes it went
  std::atomic<int> fail_data{0};       // so many bulk sends fail
  std::atomic<int64_t> delay_us{
      0};  // of bulk data and remote reads, by blocking the progress thread
  std::atomic<uint64_t> data_sent{0};  // bulk sends handed on
};

class FaultLink final : public transport::Link, private transport::LinkEvents {
 public:
  FaultLink(std::unique_ptr<transport::Link> link, std::shared_ptr<Faults> faults)
      : link_(std::move(link)), faults_(std::move(faults)) {}

  Status start(transport::LinkEvents& events, const std::string& host, uint16_t port) override {
    events_ = &events;
    return link_->start(*this, host, port);
  }
  uint16_t listen_port() const override { return link_->listen_port(); }
  void stop_listening() override { link_->stop_listening(); }
  Result<transport::PeerId> connect(const std::string& host, uint16_t port) override {
    return link_->connect(host, port);
  }
  void close(transport::PeerId peer) override { link_->close(peer); }
  std::string lanes(transport::PeerId peer) const override { return link_->lanes(peer); }

  void send(transport::PeerId peer, std::vector<std::byte> bytes,
            transport::Completion done) override {
    if (faults_->cut) {
      if (done) held_[peer].push_back([done] { done(make_error(Errc::cancelled, "cut")); });
      return;
    }
    link_->send(peer, std::move(bytes), std::move(done));
  }
  void send_data(transport::PeerId peer, const transport::DataHeader& header,
                 std::vector<transport::ConstSegment> segments,
                 transport::Completion done) override {
    pause();
    if (faults_->cut || faults_->hold_data) {
      held_[peer].push_back([done] { done(make_error(Errc::cancelled, "held")); });
      waiting_[peer].push_back(
          [this, peer, header, segments, done] { link_->send_data(peer, header, segments, done); });
    } else if (faults_->drop_data) {
      later_.push_back([done] { done({}); });
    } else if (faults_->fail_data > 0) {
      --faults_->fail_data;
      later_.push_back([done] { done(make_error(Errc::io_error, "injected")); });
    } else {
      ++faults_->data_sent;
      link_->send_data(peer, header, std::move(segments), std::move(done));
    }
  }
  bool can_get(transport::PeerId peer, std::span<const std::byte> key) override {
    return link_->can_get(peer, key);
  }
  void get(transport::PeerId peer, std::span<const std::byte> key, uint64_t offset,
           transport::Segment target, transport::Completion done) override {
    pause();
    if (faults_->cut) {
      held_[peer].push_back([done] { done(make_error(Errc::cancelled, "cut")); });
      return;
    }
    link_->get(peer, key, offset, target, std::move(done));
  }
  const std::byte* peek(std::span<const std::byte> key) const override { return link_->peek(key); }
  Result<transport::LinkRegion> map(const transport::MemoryBlock& memory) override {
    return link_->map(memory);
  }
  void unmap(const transport::LinkRegion& region) override { link_->unmap(region); }

  size_t progress() override {
    const auto events = std::exchange(later_, {});
    for (const auto& event : events) event();
    size_t released = 0;
    if (!faults_->hold_data && !faults_->cut) {
      for (auto& [peer, sends] : std::exchange(waiting_, {})) {
        held_.erase(peer);
        for (const auto& send : sends) send();
        released += sends.size();
      }
    }
    if (!waiting_.empty()) std::this_thread::sleep_for(std::chrono::microseconds(200));
    return events.size() + released + link_->progress();
  }
  int event_fd() const override { return link_->event_fd(); }
  bool arm() override {
    // Held data is released when the flag falls, which wakes nobody: poll.
    return later_.empty() && waiting_.empty() && link_->arm();
  }

 private:
  void pause() const {
    if (const int64_t us = faults_->delay_us; us > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(us));
  }

  void on_open(transport::PeerId peer, bool accepted) override { events_->on_open(peer, accepted); }
  void on_message(transport::PeerId peer, std::span<const std::byte> bytes) override {
    if (!faults_->cut) events_->on_message(peer, bytes);
  }
  std::vector<transport::Segment> on_data(transport::PeerId peer,
                                          const transport::DataHeader& header,
                                          uint64_t bytes) override {
    if (faults_->cut) return {};
    return events_->on_data(peer, header, bytes);
  }
  void on_data_done(transport::PeerId peer, const transport::DataHeader& header,
                    Status status) override {
    events_->on_data_done(peer, header, std::move(status));
  }
  void on_down(transport::PeerId peer, const Error& error) override {
    if (!faults_->cut) events_->on_down(peer, error);
  }
  void on_closed(transport::PeerId peer) override {
    waiting_.erase(peer);
    const auto at = held_.find(peer);
    if (at != held_.end()) {
      const auto held = std::move(at->second);
      held_.erase(at);
      for (const auto& done : held) done();
    }
    events_->on_closed(peer);
  }
  void on_late() override { events_->on_late(); }

  std::unique_ptr<transport::Link> link_;
  std::shared_ptr<Faults> faults_;
  transport::LinkEvents* events_ = nullptr;
  std::unordered_map<transport::PeerId, std::vector<std::function<void()>>> held_, waiting_;
  std::vector<std::function<void()>> later_;
};

}  // namespace cedar::test
