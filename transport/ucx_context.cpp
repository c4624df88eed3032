#include "transport/ucx_context.h"

#include <cstdlib>
#include <cstring>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

namespace cedar::transport {
namespace {

/// Our default where the operator has said nothing.
void prefer(ucp_config_t* config, const char* name, const std::string& value) {
  if (value.empty() || std::getenv((std::string("UCX_") + name).c_str()) != nullptr) return;
  ucp_config_modify(config, name, value.c_str());
}

uint16_t port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

Error ucx_error(const std::string& what, ucs_status_t status, Errc code) {
  return make_error(code, what + ": " + ucs_status_string(status));
}

Result<std::unique_ptr<UcxContext>> UcxContext::create(const UcxOptions& options) {
  prepare_ucx_environment();
  std::unique_ptr<UcxContext> self(new UcxContext);
  ucp_config_t* config = nullptr;
  if (const auto status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK)
    return ucx_error("UCX settings", status);
  // The same behaviour on hosts with and without RDMA drivers; one rail, so that bulk data does not wander to other cards.
  prefer(config, "SOCKADDR_TLS_PRIORITY", "tcp");
  prefer(config, "MAX_RNDV_RAILS", "1");
  prefer(config, "TLS", options.tls);
  prefer(config, "NET_DEVICES", options.net_devices);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  auto status = ucp_init(&params, config, &self->context_);
  ucp_config_release(config);
  if (status != UCS_OK) return ucx_error("UCX context", status);

  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode =
      UCS_THREAD_MODE_SERIALIZED;  // created and destroyed by others than the progress thread
  status = ucp_worker_create(self->context_, &worker, &self->worker_);
  if (status == UCS_OK) status = ucp_worker_get_efd(self->worker_, &self->event_fd_);
  if (status != UCS_OK) return ucx_error("UCX worker", status);
  return self;
}

UcxContext::~UcxContext() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

Result<std::unique_ptr<UcxListener>> UcxListener::create(ucp_worker_h worker,
                                                         const std::string& host, uint16_t port,
                                                         Handler handler) {
  CEDAR_TRY(const SocketAddress address, SocketAddress::parse(host, port));
  std::unique_ptr<UcxListener> self(new UcxListener(std::move(handler)));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = address.ucx();
  params.conn_handler.cb = [](ucp_conn_request_h request, void* arg) {
    static_cast<UcxListener*>(arg)->handler_(request);
  };
  params.conn_handler.arg = self.get();
  const std::string where = host + ":" + std::to_string(port);
  if (const auto status = ucp_listener_create(worker, &params, &self->listener_); status != UCS_OK)
    return ucx_error("listen on " + where, status, Errc::unavailable);
  ucp_listener_attr_t attr{};
  attr.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (const auto status = ucp_listener_query(self->listener_, &attr); status != UCS_OK)
    return ucx_error("listen on " + where, status, Errc::unavailable);
  self->port_ = port_of(attr.sockaddr);
  return self;
}

UcxListener::~UcxListener() {
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
}

Result<SocketAddress> SocketAddress::parse(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0 ||
      found == nullptr)
    return make_error(Errc::invalid_argument, "address must be numeric, got '" + host + "'");
  SocketAddress result;
  result.bytes_ = found->ai_addrlen;
  std::memcpy(&result.storage_, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return result;
}

}  // namespace cedar::transport
