#include "actors/network.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <caf/io/middleman.hpp>
#include <caf/openssl/manager.hpp>
#include <caf/openssl/publish.hpp>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "core/check.h"

namespace cedar::actors {
namespace {

struct AddressDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressDeleter>;

Result<AddressList> resolve(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int code = getaddrinfo(host.c_str(), port.empty() ? nullptr : port.c_str(), &hints, &list);
  if (code != 0) return make_error(Errc::unavailable, host + ": " + gai_strerror(code));
  return AddressList(list);
}

bool uses_tls(caf::actor_system& system) {
  return !caf::get_or(system.config(), "openssl.certificate", "").empty();
}

// OpenSSL keeps errors in a queue per thread, and SSL_get_error() blames whoever asks next for what it finds there. CAF
// serves all connections on one thread and never empties the queue: a peer without a certificate, or one that was
// killed, would end the connections to all others. So every read and write of a connection begins with an empty queue.

long before_transfer(BIO*, int operation, const char*, size_t, int, long, int result, size_t*) {
  if ((operation & BIO_CB_RETURN) == 0) ERR_clear_error();
  return result;
}

void on_tls_state(const SSL* ssl, int where, int) {
  if ((where & SSL_CB_HANDSHAKE_START) == 0) return;
  for (BIO* bio : {SSL_get_rbio(ssl), SSL_get_wbio(ssl)}) {
    if (bio != nullptr) BIO_set_callback_ex(bio, before_transfer);
  }
}

void on_new_tls_connection(void* ssl, void*, CRYPTO_EX_DATA*, int, long, void*) {
  SSL_set_info_callback(static_cast<SSL*>(ssl), on_tls_state);
}

/// CAF shows nobody its SSL objects; OpenSSL tells of every new one.
void keep_tls_errors_apart() {
  static const int index = CRYPTO_get_ex_new_index(CRYPTO_EX_INDEX_SSL, 0, nullptr,
                                                   on_new_tls_connection, nullptr, nullptr);
  CEDAR_ASSERT(index >= 0, "OpenSSL takes no callback");
}

/// 0, or the errno of the attempt.
int try_connect(const addrinfo& address, std::chrono::milliseconds limit) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  int code = ::connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (code == EINPROGRESS) {
    pollfd wait{fd, POLLOUT, 0};
    code = ETIMEDOUT;
    if (::poll(&wait, 1, static_cast<int>(limit.count())) == 1) {
      socklen_t size = sizeof code;
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size);
    }
  }
  ::close(fd);
  return code;
}

}  // namespace

void configure_network(caf::actor_system_config& config, const NetworkOptions& options) {
  config.load<caf::io::middleman>();
  config.set("middleman.app-identifiers", std::vector<std::string>{"cedar"});
  config.set("middleman.workers", size_t{1});
  config.set("middleman.heartbeat-interval", caf::timespan(options.heartbeat_interval));
  config.set("middleman.connection-timeout", caf::timespan(options.lost_after));
  add_membership_types(config);
  if (!options.tls) return;
  keep_tls_errors_apart();
  config.load<caf::openssl::manager>();
  config.set("openssl.certificate", options.certificate);
  config.set("openssl.key", options.key);
  config.set("openssl.cafile", options.authority);
}

Result<uint16_t> publish(caf::actor_system& system, const RegistryActor& door,
                         const std::string& host, uint16_t port) {
  // Untyped: a node of another version must reach the door to be told what it is refused for.
  const auto actor = caf::actor_cast<caf::actor>(door);
  auto bound = uses_tls(system) ? caf::openssl::publish(actor, port, host.c_str(), true)
                                : system.middleman().publish(actor, port, host.c_str(), true);
  if (bound) return *bound;
  return make_error(Errc::io_error, "cannot listen on " + host + ':' + std::to_string(port) + ": " +
                                        system.render(bound.error()));
}

caf::io::middleman_actor connector(caf::actor_system& system) {
  return uses_tls(system) ? system.openssl_manager().actor_handle()
                          : system.middleman().actor_handle();
}

Status probe(const std::string& host, uint16_t port, std::chrono::milliseconds limit) {
  CEDAR_TRY(const AddressList list, resolve(host, std::to_string(port)));
  int code = EADDRNOTAVAIL;
  for (const addrinfo* address = list.get(); address != nullptr; address = address->ai_next) {
    code = try_connect(*address, limit);
    if (code == 0) return {};
  }
  return make_error(Errc::unavailable,
                    host + ':' + std::to_string(port) + ": " + std::strerror(code));
}

Result<std::string> numeric_address(const std::string& host) {
  CEDAR_TRY(const AddressList list, resolve(host, ""));
  char text[NI_MAXHOST];
  const int code =
      getnameinfo(list->ai_addr, list->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  if (code != 0) return make_error(Errc::unavailable, host + ": " + gai_strerror(code));
  return std::string(text);
}

}  // namespace cedar::actors
