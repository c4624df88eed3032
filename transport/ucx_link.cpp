#include "transport/ucx_link.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/free_memory.h"
#include "core/log.h"
#include "transport/node_transport.h"
#include "transport/ucx_operation.h"

namespace cedar::transport {
namespace {

constexpr unsigned kSmallMessage = 1;
constexpr unsigned kBulkMessage = 2;

Error peer_gone() { return make_error(Errc::unavailable, "connection is closed"); }

/// "sysv/memory,posix/memory,tcp/lo" out of what UCX prints about an endpoint.
std::string lane_names(ucp_ep_h endpoint) {
  char* text = nullptr;
  size_t bytes = 0;
  std::FILE* stream = ::open_memstream(&text, &bytes);
  if (stream == nullptr) return "unknown";
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  std::string all(text, bytes), names;
  std::free(text);
  for (size_t at = 0; (at = all.find("lane[", at)) != std::string::npos;) {
    const size_t colon = all.find(':', at);
    const size_t end = all.find('\n', at);
    at = end == std::string::npos ? all.size() : end;
    // "lane[1]:  3:sysv/memory.0 md[2] ..." ; the connection manager's lane has no resource number.
    const size_t resource = all.find(':', colon + 1);
    if (colon == std::string::npos || resource == std::string::npos || resource > at) continue;
    std::string name = all.substr(resource + 1, all.find_first_of(". ", resource) - resource - 1);
    if (names.find(name) == std::string::npos) names += (names.empty() ? "" : ",") + name;
  }
  return names.empty() ? "unknown" : names;
}

}  // namespace

UcxLink::UcxLink(std::unique_ptr<UcxContext> ucx, const UcxOptions& options)
    : ucx_(std::move(ucx)), options_(options) {}

UcxLink::~UcxLink() {
  dying_ = true;
  for (auto& [peer, channel] : channels_) {
    channel->closing = true;
    closing_.push_back(peer);
  }
  std::sort(closing_.begin(), closing_.end());
  closing_.erase(std::unique(closing_.begin(), closing_.end()), closing_.end());
  const auto limit = Clock::now() + std::chrono::seconds(2);
  while (!channels_.empty() && Clock::now() < limit) progress();
  if (!channels_.empty())
    log::error("transport", "endpoints would not close", {{"count", int64_t(channels_.size())}});
  UcxLink::stop_listening();
}

/// UCX 1.13 keeps a bare pointer to the listener in every connection that it has accepted and whose first message it has not
/// read, and a thread of its own follows it. So the listener goes when that message has had time to come.
void UcxLink::stop_listening() {
  if (!listener_) return;
  const auto settled = Clock::now() + std::chrono::milliseconds(10);
  while (Clock::now() < settled) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ucp_worker_progress(ucx_->worker());
    for (const ucp_conn_request_h request : std::exchange(pending_, {})) listener_->reject(request);
  }
  listener_.reset();
}

Status UcxLink::start(LinkEvents& events, const std::string& host, uint16_t port) {
  events_ = &events;
  const std::pair<unsigned, ucp_am_recv_callback_t> handlers[] = {{kSmallMessage, on_small},
                                                                  {kBulkMessage, on_bulk}};
  for (const auto& [id, callback] : handlers) {
    ucp_am_handler_param_t param{};
    param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
    param.id = id;
    param.cb = callback;
    param.arg = this;
    param.flags = UCP_AM_FLAG_WHOLE_MSG;
    if (const auto status = ucp_worker_set_am_recv_handler(ucx_->worker(), &param);
        status != UCS_OK)
      return ucx_error("UCX message handler", status);
  }
  CEDAR_TRY(listener_,
            UcxListener::create(ucx_->worker(), host, port,
                                [this](ucp_conn_request_h r) { pending_.push_back(r); }));
  return {};
}

Result<PeerId> UcxLink::add_channel(ucp_ep_params_t& params) {
  auto channel = std::make_unique<Channel>();
  channel->peer = PeerId(++last_peer_);
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                       UCP_EP_PARAM_FIELD_USER_DATA;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.user_data = this;
  params.err_handler.arg = this;
  params.err_handler.cb = [](void* arg, ucp_ep_h endpoint, ucs_status_t status) {
    auto& self = *static_cast<UcxLink*>(arg);
    const auto at = self.by_endpoint_.find(endpoint);
    if (self.dying_ || at == self.by_endpoint_.end()) return;
    // UCX forbids closing inside; its words are all that is known about the reason.
    self.later([&self, peer = at->second->peer, status] {
      if (self.open_channel(peer) != nullptr)
        self.events_->on_down(peer, ucx_error("connection lost", status, Errc::unavailable));
    });
  };
  const auto status = ucp_ep_create(ucx_->worker(), &params, &channel->endpoint);
  if (status != UCS_OK) return ucx_error("UCX endpoint", status, Errc::unavailable);
  const PeerId peer = channel->peer;
  by_endpoint_[channel->endpoint] = channel.get();
  channels_.emplace(peer, std::move(channel));
  return peer;
}

Result<PeerId> UcxLink::connect(const std::string& host, uint16_t port) {
  CEDAR_TRY(const SocketAddress address, SocketAddress::parse(host, port));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = address.ucx();
  CEDAR_TRY(const PeerId peer, add_channel(params));
  // UCX queues what is sent before the connection stands, and reports one that fails.
  later([this, peer] {
    if (open_channel(peer) != nullptr) events_->on_open(peer, false);
  });
  return peer;
}

void UcxLink::accept_pending() {
  for (const ucp_conn_request_h request : std::exchange(pending_, {})) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = request;
    const auto peer = add_channel(params);
    if (peer) {
      events_->on_open(*peer, true);
    } else {
      log::warn("transport", "accept failed", {{"reason", peer.error().message()}});
    }
  }
}

UcxLink::Channel* UcxLink::open_channel(PeerId peer) {
  const auto at = channels_.find(peer);
  return at == channels_.end() || at->second->closing ? nullptr : at->second.get();
}

void UcxLink::close(PeerId peer) {
  Channel* channel = open_channel(peer);
  if (channel == nullptr) return;
  channel->closing = true;
  by_endpoint_.erase(channel->endpoint);
  closing_.push_back(peer);
}

/// True when the channel is gone.
bool UcxLink::advance_close(Channel& channel) {
  if (!channel.close_started) {
    channel.close_started = true;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t request = ucp_ep_close_nbx(channel.endpoint, &param);
    if (UCS_PTR_IS_PTR(request)) channel.close_request = request;
  }
  if (channel.close_request != nullptr) {
    if (ucp_request_check_status(channel.close_request) == UCS_INPROGRESS) return false;
    ucp_request_free(channel.close_request);
    channel.close_request = nullptr;
  }
  if (channel.operations > 0) return false;
  const PeerId peer = channel.peer;
  channels_.erase(peer);
  if (!dying_) events_->on_closed(peer);
  return true;
}

std::string UcxLink::lanes(PeerId peer) const {
  const auto at = channels_.find(peer);
  return at == channels_.end() ? "" : lane_names(at->second->endpoint);
}

void UcxLink::report_later(Completion done, Status status) {
  if (!done) return;
  later([this, done = std::move(done), status = std::move(status)] {
    if (!dying_) done(status);
  });
}

void UcxLink::fail_later(Completion done) { report_later(std::move(done), peer_gone()); }

void UcxLink::finish(Operation* operation, ucs_status_t status) {
  const std::unique_ptr<Operation> owned(operation);
  Channel& channel = *operation->channel;
  const Status result =
      status == UCS_OK ? Status{} : Status{ucx_error("transfer", status, Errc::unavailable)};
  if (!dying_ && operation->done) operation->done(result);
  --channel.operations;
}

void UcxLink::track(Operation* operation, ucs_status_ptr_t request) {
  ++operation->channel->operations;
  if (UCS_PTR_IS_PTR(request)) return;  // the callback finishes it
  // Completed (or refused) at once, without a callback: reported like the others, from progress().
  later([this, operation, status = UCS_PTR_STATUS(request)] { finish(operation, status); });
}

void UcxLink::send(PeerId peer, std::vector<std::byte> bytes, Completion done) {
  Channel* channel = open_channel(peer);
  if (channel == nullptr) {
    fail_later(std::move(done));
    return;
  }
  auto* operation = new Operation{this, channel, std::move(done)};
  operation->bytes = std::move(bytes);
  auto param = Operation::send_param(UCP_AM_SEND_FLAG_EAGER, operation);
  track(operation, ucp_am_send_nbx(channel->endpoint, kSmallMessage, nullptr, 0,
                                   operation->bytes.data(), operation->bytes.size(), &param));
}

void UcxLink::send_data(PeerId peer, const DataHeader& header, std::vector<ConstSegment> segments,
                        Completion done) {
  Channel* channel = open_channel(peer);
  if (channel == nullptr) {
    fail_later(std::move(done));
    return;
  }
  auto* operation = new Operation{this, channel, std::move(done)};
  operation->set_header(header);
  uint64_t total = 0;
  for (const ConstSegment& segment : segments) {
    total += segment.bytes;
    operation->iov.push_back({const_cast<std::byte*>(segment.data), segment.bytes});
  }
  const unsigned how =
      total <= options_.eager_bytes ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
  auto param = Operation::send_param(how, operation);
  const auto [data, count] = operation->payload(param);
  track(operation, ucp_am_send_nbx(channel->endpoint, kBulkMessage, operation->header.data(),
                                   operation->header.size(), data, count, &param));
}

bool UcxLink::can_get(PeerId peer, std::span<const std::byte> key) {
  Channel* channel = open_channel(peer);
  if (channel == nullptr) return false;
  if (!channel->lanes_known) {
    const std::string names = lane_names(channel->endpoint);
    channel->rdma =
        names.find("rc_") != std::string::npos || names.find("dc_") != std::string::npos;
    channel->lanes_known = true;
  }
  const UcxKeys::Key* found = channel->keys.find(channel->endpoint, key);
  return found != nullptr && (found->local != nullptr || channel->rdma);
}

void UcxLink::get(PeerId peer, std::span<const std::byte> key, uint64_t offset, Segment target,
                  Completion done) {
  Channel* channel = open_channel(peer);
  const UcxKeys::Key* found =
      channel == nullptr ? nullptr : channel->keys.find(channel->endpoint, key);
  if (found == nullptr) {
    fail_later(std::move(done));
    return;
  }
  if (offset > found->bytes || target.bytes > found->bytes - offset) {
    report_later(std::move(done),
                 make_error(Errc::invalid_argument, "range outside of the region"));
    return;
  }
  if (found->local != nullptr) {
    std::memcpy(target.data, found->local + offset, target.bytes);
    report_later(std::move(done), {});
    return;
  }
  auto* operation = new Operation{this, channel, std::move(done)};
  auto param = Operation::send_param(0, operation);
  track(operation, ucp_get_nbx(channel->endpoint, target.data, target.bytes, found->base + offset,
                               found->rkey, &param));
}

UcxLink::Channel* UcxLink::sender(const ucp_am_recv_param_t* param) {
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0) {
    const auto at = by_endpoint_.find(param->reply_ep);
    if (at != by_endpoint_.end()) return at->second;
  }
  if (!dying_) events_->on_late();
  return nullptr;
}

ucs_status_t UcxLink::on_small(void* arg, const void*, size_t, void* data, size_t bytes,
                               const ucp_am_recv_param_t* param) {
  auto& self = *static_cast<UcxLink*>(arg);
  // Small messages are eager by protocol: a rendezvous is dropped unread.
  const bool whole = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  Channel* channel = self.sender(param);
  if (channel != nullptr && whole && !self.dying_)
    self.events_->on_message(channel->peer, {static_cast<const std::byte*>(data), bytes});
  return UCS_OK;
}

ucs_status_t UcxLink::on_bulk(void* arg, const void* header, size_t header_bytes, void* data,
                              size_t bytes, const ucp_am_recv_param_t* param) {
  auto& self = *static_cast<UcxLink*>(arg);
  Channel* channel = self.sender(param);
  const auto parsed = Operation::parse_header(header, header_bytes);
  if (channel == nullptr || !parsed || self.dying_) return UCS_OK;
  return self.receive(*channel, *parsed, data, bytes,
                      (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
}

ucs_status_t UcxLink::receive(Channel& channel, const DataHeader& header, void* data, size_t bytes,
                              bool rendezvous) {
  const auto segments = events_->on_data(channel.peer, header, bytes);
  if (segments.empty()) return UCS_OK;
  if (!rendezvous) {
    const auto* from = static_cast<const std::byte*>(data);
    for (const Segment& segment : segments) {
      std::memcpy(segment.data, from, segment.bytes);
      from += segment.bytes;
    }
    events_->on_data_done(channel.peer, header, {});
    return UCS_OK;
  }
  auto* operation =
      new Operation{this, &channel, [this, peer = channel.peer, header](const Status& s) {
                      events_->on_data_done(peer, header, s);
                    }};
  for (const Segment& segment : segments) operation->iov.push_back({segment.data, segment.bytes});
  auto param = Operation::receive_param(operation);
  const auto [target, count] = operation->payload(param);
  track(operation, ucp_am_recv_data_nbx(ucx_->worker(), data, target, count, &param));
  return UCS_INPROGRESS;
}

Result<LinkRegion> UcxLink::map(const MemoryBlock& memory) {
  // UCX writes all of a shared segment when it makes it. What a machine does not have it would take all the same, until
  // the kernel ends processes, and the segment's file would stay.
  if (memory.data == nullptr) {
    CEDAR_CHECK_OK(check_available(static_cast<int64_t>(memory.bytes)));
  }
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.address = memory.data;
  params.length = memory.bytes;
  if (memory.data == nullptr) params.flags = UCP_MEM_MAP_ALLOCATE;
  ucp_mem_h handle = nullptr;
  if (const auto status = ucp_mem_map(ucx_->context(), &params, &handle); status != UCS_OK)
    return ucx_error(std::to_string(memory.bytes) + " bytes", status, Errc::out_of_memory);
  LinkRegion region{memory, {}, reinterpret_cast<uint64_t>(handle)};
  ucp_mem_attr_t attr{};
  attr.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  auto status = ucp_mem_query(handle, &attr);
  void* rkey = nullptr;
  size_t rkey_bytes = 0;
  if (status == UCS_OK) status = ucp_rkey_pack(ucx_->context(), handle, &rkey, &rkey_bytes);
  if (status != UCS_OK) {
    ucp_mem_unmap(ucx_->context(), handle);
    return ucx_error("UCX region", status);
  }
  if (memory.data == nullptr) {
    region.memory.data = static_cast<std::byte*>(attr.address);
    std::memset(region.memory.data, 0, region.memory.bytes);
  }
  region.key = pack_ucx_key(reinterpret_cast<uint64_t>(region.memory.data), memory.bytes,
                            {static_cast<const std::byte*>(rkey), rkey_bytes});
  ucp_rkey_buffer_release(rkey);
  return region;
}

void UcxLink::unmap(const LinkRegion& region) {
  ucp_mem_unmap(ucx_->context(), reinterpret_cast<ucp_mem_h>(region.handle));
}

size_t UcxLink::progress() {
  const auto events = std::exchange(later_, {});
  for (const auto& event : events) event();
  size_t count = events.size() + ucp_worker_progress(ucx_->worker());
  if (!pending_.empty() && !dying_) {
    count += pending_.size();
    accept_pending();
  }
  for (size_t i = 0; i < closing_.size();) {
    const auto at = channels_.find(closing_[i]);
    if (at == channels_.end() || advance_close(*at->second)) {
      closing_.erase(closing_.begin() + static_cast<std::ptrdiff_t>(i));
      ++count;
    } else {
      ++i;
    }
  }
  return count;
}

bool UcxLink::arm() {
  // Closing endpoints are polled: nothing promises an event for their end.
  if (!later_.empty() || !pending_.empty() || !closing_.empty()) return false;
  return ucp_worker_arm(ucx_->worker()) == UCS_OK;
}

Result<std::unique_ptr<Link>> make_ucx_link(const UcxOptions& options) {
  CEDAR_TRY(auto ucx, UcxContext::create(options));
  return std::unique_ptr<Link>(std::make_unique<UcxLink>(std::move(ucx), options));
}

Result<std::unique_ptr<Transport>> make_ucx_transport(const TransportOptions& options,
                                                      const UcxOptions& ucx) {
  CEDAR_TRY(auto link, make_ucx_link(ucx));
  return make_transport(options, std::move(link));
}

}  // namespace cedar::transport
