#include "gateway/listener.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>

#include <utility>

#include "core/log.h"
#include "gateway/http_session.h"
#include "gateway/tls_stream.h"

namespace cedar::gateway {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

// Large buffers would hide a client that does not read until megabytes are lost in them.
constexpr int kSendBufferBytes = 65536;
constexpr std::chrono::milliseconds kAcceptPause{100};  // when the process has no descriptors left

}  // namespace

Listener::Listener(GatewayContext& context)
    : context_(context), acceptor_(asio::make_strand(context.io)) {}

Status Listener::open(const std::string& host, uint16_t port) {
  boost::system::error_code error;
  const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
  if (error) {
    return make_error(Errc::invalid_argument, "host: must be an IP address, got \"" + host + '"');
  }
  const tcp::endpoint endpoint(address, port);
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return make_error(Errc::io_error, "cannot listen on " + host + " port " + std::to_string(port) +
                                          ": " + error.message());
  }
  port_ = acceptor_.local_endpoint().port();
  return {};
}

void Listener::run() {
  asio::post(acceptor_.get_executor(), [self = shared_from_this()] { self->accept(); });
}

void Listener::stop() {
  asio::post(acceptor_.get_executor(), [self = shared_from_this()] {
    boost::system::error_code ignored;
    self->acceptor_.close(ignored);
  });
}

void Listener::accept() {
  acceptor_.async_accept(
      asio::make_strand(context_.io),
      [self = shared_from_this()](boost::system::error_code error, tcp::socket socket) {
        if (!self->acceptor_.is_open()) return;
        if (!error) {
          self->take(std::move(socket));
          return self->accept();
        }
        log::warn("gateway", "accept failed", {{"error", error.message()}});
        auto timer =
            std::make_shared<asio::steady_timer>(self->acceptor_.get_executor(), kAcceptPause);
        timer->async_wait([self, timer](boost::system::error_code) { self->accept(); });
      });
}

void Listener::take(tcp::socket socket) {
  if (context_.connections.size() >= context_.options.http.max_connections) return;  // closes it
  boost::system::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
  const auto unacknowledged_ms =
      static_cast<unsigned int>(context_.options.http.write_timeout.count());
  setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms,
             sizeof unacknowledged_ms);
  const auto tls = context_.tls.get();
  AnyStream stream(tls ? make_tls_stream(std::move(socket), tls)
                       : make_plain_stream(std::move(socket)));
  std::make_shared<HttpSession>(context_, std::move(stream))->run();
}

}  // namespace cedar::gateway
