#pragma once
// One HTTP/1.1 connection. Requests are served one after the other. The socket is read all the time, one read
// at a time: while an answer runs its bytes are kept for the next request, and a client that leaves is noticed
// at once. A client that only ends its own side (half-close) still gets the answers of the short endpoints; for
// a generation nothing tells it from one that left, so that the end of its side cancels the work.

#include <boost/asio/steady_timer.hpp>

#include <array>
#include <chrono>
#include <memory>
#include <string>

#include "gateway/admission.h"
#include "gateway/byte_stream.h"
#include "gateway/connection_set.h"
#include "gateway/context.h"
#include "gateway/generation.h"
#include "gateway/http_writer.h"
#include "gateway/request_reader.h"
#include "gateway/routes.h"
#include "gateway/write_progress.h"

namespace cedar::gateway {

class HttpSession final : public HttpWriter,
                          public Connection,
                          public std::enable_shared_from_this<HttpSession> {
 public:
  /// `stream`'s executor is a strand of its own.
  HttpSession(GatewayContext& context, AnyStream stream);
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
  /// written.  upgrading: until neither a read nor a write is pending, then the socket moves on.  closing: the
  /// last answer is out, the client should close.  closed: the socket is, or belongs to a WebSocket.
  enum class State : uint8_t { idle, reading, answering, upgrading, closing, closed };

  void shake_hands();
  void next_request();
  void read_more();
  void on_read(ErrorCode error, size_t bytes);
  void on_client_eof();
  void advance();
  bool on_header();
  void refuse_broken();
  void refuse(const ApiError& error);
  void handle_request();
  void handle_generate(ApiKind kind);
  void handle_tokens();
  bool enter(KeyUse& use);
  void start_generation(Result<PreparedRequest> prepared, KeyUse use);
  void upgrade();
  void upgrade_when_quiet();
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

  boost::asio::any_io_executor executor() { return stream_.get_executor(); }

  GatewayContext& context_;
  AnyStream stream_;
  boost::asio::steady_timer
      read_timer_;  // handshake, idle, header, body, or the pause on a silent stream
  boost::asio::steady_timer write_timer_;  // a write without progress
  WriteProgress write_progress_;
  // The only memory that a pending read writes to. The parser's buffer moves its bytes as it likes.
  std::array<char, 16384> incoming_;
  RequestReader reader_;
  BodyLease answer_lease_;
  BodyLease body_lease_;
  std::shared_ptr<Generation> generation_;
  Route route_;
  Admission admission_;
  std::string request_id_;
  std::string idle_piece_;
  std::string out_;        // not handed to the socket yet
  std::string in_flight_;  // being written
  State state_ = State::idle;
  bool read_pending_ = false;
  bool client_eof_ = false;  // it sends nothing more
  bool generating_ = false;  // from a generation's request to the end of its answer
  bool writing_ = false;
  bool answer_complete_ = false;  // all of it is in out_
  bool keep_alive_ = true;
  bool head_only_ = false;
  bool chunked_ = false;
  bool silent_ = false;  // nothing was written since the last tick
};

}  // namespace cedar::gateway
