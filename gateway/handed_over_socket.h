#pragma once
// A socket that moves from HTTP to WebSocket together with the bytes that came behind the upgrade request.

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/buffered_read_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket/teardown.hpp>

#include <string_view>
#include <utility>

namespace cedar::gateway {

/// Reads give the bytes of `ahead` first, then those of the socket.
class HandedOverSocket final
    : public boost::beast::buffered_read_stream<boost::asio::ip::tcp::socket,
                                                boost::beast::flat_buffer> {
 public:
  HandedOverSocket(boost::asio::ip::tcp::socket socket, std::string_view ahead)
      : buffered_read_stream(std::move(socket)) {
    buffer().commit(boost::asio::buffer_copy(buffer().prepare(ahead.size()),
                                             boost::asio::buffer(ahead.data(), ahead.size())));
  }
};

// Beast finds these by the argument's namespace when it closes a WebSocket.

inline void teardown(boost::beast::role_type role, HandedOverSocket& socket,
                     boost::system::error_code& error) {
  boost::beast::websocket::teardown(role, socket.next_layer(), error);
}

template <class Handler>
void async_teardown(boost::beast::role_type role, HandedOverSocket& socket, Handler&& handler) {
  boost::beast::websocket::async_teardown(role, socket.next_layer(),
                                          std::forward<Handler>(handler));
}

}  // namespace cedar::gateway
