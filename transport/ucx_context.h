#pragma once
// Owners of UCX's context, worker and listener. Private to the UCX back end.

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <ucp/api/ucp.h>

#include "transport/types.h"
#include "transport/ucx.h"

namespace cedar::transport {

/// "what: UCX's words".
Error ucx_error(const std::string& what, ucs_status_t status, Errc code = Errc::io_error);

class UcxContext {
 public:
  /// Context and one worker for one thread. Errors: io_error.
  static Result<std::unique_ptr<UcxContext>> create(const UcxOptions& options);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_context_h context() const { return context_; }
  ucp_worker_h worker() const { return worker_; }
  /// Readable when there is work; see ucp_worker_arm.
  int event_fd() const { return event_fd_; }

 private:
  UcxContext() = default;

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
};

class UcxListener {
 public:
  using Handler = std::function<void(ucp_conn_request_h)>;

  /// `handler` is called while the worker progresses. Errors: invalid_argument (host), unavailable (address).
  static Result<std::unique_ptr<UcxListener>> create(ucp_worker_h worker, const std::string& host,
                                                     uint16_t port, Handler handler);
  ~UcxListener();
  UcxListener(const UcxListener&) = delete;
  UcxListener& operator=(const UcxListener&) = delete;

  uint16_t port() const { return port_; }
  void reject(ucp_conn_request_h request) { ucp_listener_reject(listener_, request); }

 private:
  explicit UcxListener(Handler handler) : handler_(std::move(handler)) {}

  Handler handler_;
  ucp_listener_h listener_ = nullptr;
  uint16_t port_ = 0;
};

/// A numeric IPv4 or IPv6 address for UCX. Errors: invalid_argument.
class SocketAddress {
 public:
  static Result<SocketAddress> parse(const std::string& host, uint16_t port);
  ucs_sock_addr_t ucx() const {
    return {reinterpret_cast<const sockaddr*>(&storage_), static_cast<socklen_t>(bytes_)};
  }

 private:
  sockaddr_storage storage_{};
  uint32_t bytes_ = 0;
};

}  // namespace cedar::transport
