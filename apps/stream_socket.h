#pragma once
// A WebSocket to a server, encrypted or not, behind one type: each kind is compiled in a file of its own.

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "apps/stream_client.h"
#include "apps/ws_url.h"
#include "core/result.h"

namespace cedar::apps {

/// One read and one write at a time; all calls on the thread that runs the io_context.
class StreamSocket {
 public:
  using ErrorCode = boost::system::error_code;
  using OnEnd = std::function<void(ErrorCode)>;

  virtual ~StreamSocket() = default;
  /// A whole message. A read may be pending.
  virtual ErrorCode write(std::string_view text) = 0;
  /// `text` stays where it is until `on_end`.
  virtual void async_write(std::string_view text, OnEnd on_end) = 0;
  virtual void async_read(boost::beast::flat_buffer& message, OnEnd on_end) = 0;
  /// Of the last message: text, not binary data.
  virtual bool got_text() const = 0;
  /// What the server closed with.
  virtual uint16_t close_code() const = 0;
  virtual void close() = 0;
};

/// Errors: unavailable with the reason alone.
Result<std::unique_ptr<StreamSocket>> connect_plain(boost::asio::io_context& io, const WsUrl& url,
                                                    const StreamAccess& access);
/// The same with a server whose certificate is verified and names the host of `url`.
Result<std::unique_ptr<StreamSocket>> connect_tls(boost::asio::io_context& io, const WsUrl& url,
                                                  const StreamAccess& access);

// --- parts of both ---------------------------------------------------------------------------------------

/// Errors: unavailable.
Result<boost::asio::ip::tcp::socket> connect_tcp(boost::asio::io_context& io, const WsUrl& url);

/// A server's answer that is no WebSocket.
struct UpgradeRefusal {
  int status = 0;
  std::string retry_after;  // as the header has it
  std::string body;
};
/// What to tell a person. `had_key`: one was sent.
std::string explain(const UpgradeRefusal& refusal, bool had_key);

}  // namespace cedar::apps
