#pragma once
// One HTTP/1.1 connection. Requests are served one after the other; while an answer runs the socket is still
// read, so that a client that leaves is noticed at once.

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "gateway/connection_set.h"
#include "gateway/context.h"
#include "gateway/generation.h"
#include "gateway/http_writer.h"
#include "gateway/routes.h"

namespace cedar::gateway {

class HttpSession final : public HttpWriter,
                          public Connection,
                          public std::enable_shared_from_this<HttpSession> {
 public:
  /// `socket`'s executor is a strand of its own.
  HttpSession(GatewayContext& context, boost::asio::ip::tcp::socket socket);
  ~HttpSession() override;
  void run();

  void stop_soon() override;
  void stop_now() override;

  void respond(HttpResponse response) override;
  void begin_stream(std::string_view content_type, std::string idle_piece) override;
  void write(std::string_view piece) override;
  void end_stream() override;

 private:
  using ErrorCode = boost::system::error_code;
  /// idle: waiting for a request's first byte.  reading: the rest of it.  answering: until its last byte is
  /// written.  closing: the last answer is out, the client should close.  closed: the socket is.
  enum class State : uint8_t { idle, reading, answering, closing, closed };

  void wait_request();
  void read_header();
  void on_header(ErrorCode error);
  void read_body();
  void on_body(ErrorCode error);
  void refuse_broken(ErrorCode error);
  void handle_request();
  void handle_generate(ApiKind kind);
  void start_generation(Result<PreparedRequest> prepared);
  void upgrade();
  void watch_client();
  void on_bytes_ahead(ErrorCode error, size_t bytes);
  void client_gone();

  void send(std::string_view bytes);
  void write_next();
  void on_written(ErrorCode error);
  void answer_done();
  void linger();
  void close();

  void arm_reading(std::chrono::milliseconds limit);
  void on_reading_timeout();
  void arm_writing();
  void tick_idle_stream();

  boost::asio::any_io_executor executor() { return socket_.get_executor(); }

  GatewayContext& context_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer read_timer_;   // idle, header, body, or the pause on a silent stream
  boost::asio::steady_timer write_timer_;  // one write
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  std::shared_ptr<Generation> generation_;
  Route route_;
  std::string request_id_;
  std::string idle_piece_;
  std::string out_;        // not handed to the socket yet
  std::string in_flight_;  // being written
  State state_ = State::idle;
  bool request_read_pending_ = false;  // a header or a body is being read
  bool reading_ahead_ = false;         // a read is pending while no request is expected
  bool writing_ = false;
  bool answer_complete_ = false;  // all of it is in out_
  bool keep_alive_ = true;
  bool head_only_ = false;
  bool chunked_ = false;
  bool silent_ = false;  // nothing was written since the last tick
};

}  // namespace cedar::gateway
