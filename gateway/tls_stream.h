#pragma once
// A connection encrypted by TLS, the server's side.

#include <boost/asio/ip/tcp.hpp>

#include <memory>

#include "gateway/byte_stream.h"
#include "gateway/tls_context.h"

namespace cedar::gateway {

/// `socket`'s executor is a strand of its own.
std::shared_ptr<ByteStream> make_tls_stream(boost::asio::ip::tcp::socket socket,
                                            std::shared_ptr<const TlsContext> context);

}  // namespace cedar::gateway
