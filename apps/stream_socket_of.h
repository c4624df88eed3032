#pragma once
// StreamSocket over a stream of Asio's, for the files that compile one.

#include <boost/beast/http/error.hpp>
#include <boost/beast/websocket/stream.hpp>

#include <string>
#include <string_view>
#include <utility>

#include "apps/stream_socket.h"

namespace cedar::apps {

template <class Stream>
class StreamSocketOf final : public StreamSocket {
 public:
  explicit StreamSocketOf(Stream stream) : ws_(std::move(stream)) {}

  Stream& stream() { return ws_.next_layer(); }

  /// The opening handshake. Errors: unavailable.
  Status open(boost::asio::io_context& io, const WsUrl& url, const StreamAccess& access) {
    namespace http = boost::beast::http;
    namespace websocket = boost::beast::websocket;
    ws_.set_option(
        websocket::stream_base::decorator([key = access.key](websocket::request_type& request) {
          request.set(http::field::sec_websocket_protocol, "cedar.v1");
          if (!key.empty()) request.set(http::field::authorization, "Bearer " + key);
        }));
    websocket::response_type response;
    ErrorCode error;
    // The synchronous one keeps the answer of a server that declines to itself.
    ws_.async_handshake(response, url.authority(), url.path,
                        [&error](ErrorCode result) { error = result; });
    io.run();
    if (error == websocket::error::upgrade_declined) {
      const UpgradeRefusal refusal{static_cast<int>(response.result_int()),
                                   std::string(response[http::field::retry_after]),
                                   response.body()};
      return make_error(Errc::unavailable, explain(refusal, !access.key.empty()));
    }
    const bool cut = error == http::error::end_of_stream || error == boost::asio::error::eof ||
                     error == boost::asio::error::connection_reset;
    if (cut && !url.secure) {
      return make_error(Errc::unavailable,
                        "the server ends the connection; if it speaks TLS, it wants wss://");
    }
    if (error) return make_error(Errc::unavailable, error.message());
    return {};
  }

  ErrorCode write(std::string_view text) override {
    ErrorCode error;
    ws_.write(boost::asio::buffer(text), error);
    return error;
  }
  void async_write(std::string_view text, OnEnd on_end) override {
    ws_.async_write(boost::asio::buffer(text),
                    [on_end = std::move(on_end)](ErrorCode error, size_t) { on_end(error); });
  }
  void async_read(boost::beast::flat_buffer& message, OnEnd on_end) override {
    ws_.async_read(message,
                   [on_end = std::move(on_end)](ErrorCode error, size_t) { on_end(error); });
  }
  bool got_text() const override { return ws_.got_text(); }
  uint16_t close_code() const override { return ws_.reason().code; }
  void close() override {
    ErrorCode ignored;
    boost::beast::get_lowest_layer(ws_).close(ignored);
  }

 private:
  boost::beast::websocket::stream<Stream> ws_;
};

}  // namespace cedar::apps
