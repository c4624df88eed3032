#include "apps/stream_socket_of.h"

namespace cedar::apps {

Result<std::unique_ptr<StreamSocket>> connect_plain(boost::asio::io_context& io, const WsUrl& url,
                                                    const StreamAccess& access) {
  CEDAR_TRY(auto tcp, connect_tcp(io, url));
  auto socket = std::make_unique<StreamSocketOf<boost::asio::ip::tcp::socket>>(std::move(tcp));
  CEDAR_CHECK_OK(socket->open(io, url, access));
  return std::unique_ptr<StreamSocket>(std::move(socket));
}

}  // namespace cedar::apps
