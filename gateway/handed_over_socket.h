#pragma once
// A connection that moves from HTTP to WebSocket together with the bytes that came behind the upgrade request.

#include <boost/beast/core/buffered_read_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>

#include <string_view>
#include <utility>

#include "gateway/byte_stream.h"

namespace cedar::gateway {

/// Reads give the bytes of `ahead` first, then those of the stream.
class HandedOverSocket final
    : public boost::beast::buffered_read_stream<AnyStream, boost::beast::flat_buffer> {
 public:
  HandedOverSocket(AnyStream stream, std::string_view ahead)
      : buffered_read_stream(std::move(stream)) {
    buffer().commit(boost::asio::buffer_copy(buffer().prepare(ahead.size()),
                                             boost::asio::buffer(ahead.data(), ahead.size())));
  }
};

// Beast finds this by the argument's namespace when it ends a WebSocket.

template <class Handler>
void async_teardown(boost::beast::role_type role, HandedOverSocket& socket, Handler&& handler) {
  async_teardown(role, socket.next_layer(), std::forward<Handler>(handler));
}

}  // namespace cedar::gateway
