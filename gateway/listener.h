#pragma once
// Accepts connections and gives each a strand.

#include <boost/asio/ip/tcp.hpp>

#include <memory>

#include "core/result.h"
#include "gateway/context.h"

namespace cedar::gateway {

class Listener : public std::enable_shared_from_this<Listener> {
 public:
  explicit Listener(GatewayContext& context);

  /// Binds and listens. Errors: invalid_argument (host), io_error naming host, port and reason.
  Status open(const std::string& host, uint16_t port);
  uint16_t port() const { return port_; }
  void run();
  /// Accepts nothing from now on. From any thread.
  void stop();

 private:
  void accept();
  void take(boost::asio::ip::tcp::socket socket);

  GatewayContext& context_;
  boost::asio::ip::tcp::acceptor acceptor_;
  uint16_t port_ = 0;
};

}  // namespace cedar::gateway
