#pragma once
// Link over one UCX worker. Private to this room.
//
// Endpoints are made over sockaddr in error mode PEER. Small messages are eager active messages; bulk data is an active message
// that the receiver lands in memory of its choice (rendezvous above UcxOptions::eager_bytes); remote reads are a copy from
// the owner's shared memory, or an RMA get where an RDMA lane exists. An endpoint that failed is closed by force outside of
// UCX's callbacks, and counts as closed when all its operations have called back.

#include <unordered_map>

#include "transport/link.h"
#include "transport/ucx_context.h"
#include "transport/ucx_keys.h"

namespace cedar::transport {

class UcxLink final : public Link {
 public:
  UcxLink(std::unique_ptr<UcxContext> ucx, const UcxOptions& options);
  ~UcxLink() override;

  Status start(LinkEvents& events, const std::string& host, uint16_t port) override;
  uint16_t listen_port() const override { return listener_ ? listener_->port() : uint16_t{0}; }
  void stop_listening() override;
  Result<PeerId> connect(const std::string& host, uint16_t port) override;
  void close(PeerId peer) override;
  std::string lanes(PeerId peer) const override;
  void send(PeerId peer, std::vector<std::byte> bytes, Completion done) override;
  void send_data(PeerId peer, const DataHeader& header, std::vector<ConstSegment> segments,
                 Completion done) override;
  bool can_get(PeerId peer, std::span<const std::byte> key) override;
  void get(PeerId peer, std::span<const std::byte> key, uint64_t offset, Segment target,
           Completion done) override;
  const std::byte* peek(std::span<const std::byte>) const override { return nullptr; }
  Result<LinkRegion> map(const MemoryBlock& memory) override;
  void unmap(const LinkRegion& region) override;
  size_t progress() override;
  int event_fd() const override { return ucx_->event_fd(); }
  bool arm() override;

 private:
  struct Channel {
    PeerId peer;
    ucp_ep_h endpoint = nullptr;
    uint64_t operations = 0;  // not yet called back
    bool closing = false;
    bool close_started = false;
    void* close_request = nullptr;  // until UCX has closed the endpoint
    bool rdma = false;
    bool lanes_known = false;
    UcxKeys keys;
  };
  struct Operation;

  Channel* open_channel(PeerId peer);
  Result<PeerId> add_channel(ucp_ep_params_t& params);
  void accept_pending();
  /// Counts the request of `operation` as finished when it comes to that.
  void track(Operation* operation, ucs_status_ptr_t request);
  void finish(Operation* operation, ucs_status_t status);
  void later(std::function<void()> event) { later_.push_back(std::move(event)); }
  void report_later(Completion done, Status status);
  void fail_later(Completion done);
  bool advance_close(Channel& channel);

  static ucs_status_t on_small(void* arg, const void* header, size_t header_bytes, void* data,
                               size_t bytes, const ucp_am_recv_param_t* param);
  static ucs_status_t on_bulk(void* arg, const void* header, size_t header_bytes, void* data,
                              size_t bytes, const ucp_am_recv_param_t* param);
  Channel* sender(const ucp_am_recv_param_t* param);
  ucs_status_t receive(Channel& channel, const DataHeader& header, void* data, size_t bytes,
                       bool rendezvous);

  const std::unique_ptr<UcxContext> ucx_;
  const UcxOptions options_;
  LinkEvents* events_ = nullptr;
  std::unique_ptr<UcxListener> listener_;
  uint64_t last_peer_ = 0;
  bool dying_ = false;  // completions go nowhere any more
  std::unordered_map<PeerId, std::unique_ptr<Channel>> channels_;
  std::unordered_map<ucp_ep_h, Channel*> by_endpoint_;
  std::vector<PeerId> closing_;
  std::vector<ucp_conn_request_h> pending_;
  std::vector<std::function<void()>> later_;
};

}  // namespace cedar::transport
