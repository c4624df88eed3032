#include "gateway/websocket_session.h"

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/buffers_to_string.hpp>

#include <algorithm>
#include <utility>

#include "gateway/api_types.h"
#include "gateway/websocket_handshake.h"

namespace cedar::gateway {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace websocket = boost::beast::websocket;

namespace {

constexpr size_t kInlineParseBytes = 16384;  // longer messages are parsed on a compute thread
constexpr std::chrono::seconds kHandshakeTime{10};
constexpr std::chrono::seconds kCloseTime{2};
constexpr size_t kReadBytes = 65536;
constexpr int kMissedPongs = 2;

}  // namespace

WebSocketSession::WebSocketSession(GatewayContext& context, AnyStream stream,
                                   std::string_view ahead, KeyAccount* key)
    : context_(context),
      key_(key),
      ws_(std::move(stream), ahead),
      lease_(context.bodies),
      message_timer_(ws_.get_executor()),
      tick_timer_(ws_.get_executor()),
      write_timer_(ws_.get_executor()),
      ping_interval_(context.options.stream.ping_interval) {
  context_.metrics.add(monitoring::MetricId::connections);
}

WebSocketSession::~WebSocketSession() {
  context_.connections.remove(this);
  context_.metrics.add(monitoring::MetricId::connections, -1);
}

void WebSocketSession::run(UpgradeRequest request) {
  context_.connections.add(shared_from_this());
  request_ = std::move(request);
  protocol_ = std::make_shared<StreamProtocol>(context_, executor(), weak_from_this(), key_);
  websocket::permessage_deflate deflate;
  deflate.server_enable = false;  // latency, and secrets beside attacker-chosen text
  ws_.set_option(deflate);
  // Liveness is watched here, with close codes of the protocol; Beast's own timers stay off.
  ws_.set_option(
      websocket::stream_base::timeout{kHandshakeTime, websocket::stream_base::none(), false});
  ws_.set_option(websocket::stream_base::decorator([](websocket::response_type& response) {
    response.set(http::field::server, "cedar");
    response.set(http::field::sec_websocket_protocol, kStreamProtocol);
  }));
  ws_.read_message_max(static_cast<size_t>(context_.options.stream.max_message_bytes));
  ws_.auto_fragment(false);
  ws_.text(true);
  // Called inside a read, on the strand.
  ws_.control_callback([this](websocket::frame_type kind, beast::string_view) {
    missed_pongs_ = 0;
    if (kind == websocket::frame_type::close) on_close_frame();
  });
  ws_.async_accept(request_,
                   [self = shared_from_this()](ErrorCode error) { self->on_accepted(error); });
}

void WebSocketSession::on_accepted(ErrorCode error) {
  request_ = {};
  if (error) return drop(false);
  last_activity_ = std::chrono::steady_clock::now();
  push(protocol_->session_created());
  if (context_.stopping) stop_soon();
  schedule_tick();
  read();
}

// --- reading ---------------------------------------------------------------------------------------------

void WebSocketSession::read() {
  ws_.async_read_some(buffer_, kReadBytes, [self = shared_from_this()](ErrorCode error, size_t) {
    self->on_read(error);
  });
}

void WebSocketSession::on_read(ErrorCode error) {
  if (error) return drop(error == websocket::error::closed);
  missed_pongs_ = 0;
  last_activity_ = std::chrono::steady_clock::now();
  if (closing_) {
    buffer_.consume(buffer_.size());
    return read();
  }
  if (!ws_.got_text()) {
    close(CloseCode::unsupported_data, "text frames only");
    return read();
  }
  if (!lease_.grow_to(static_cast<int64_t>(buffer_.size()))) return refuse_message();
  if (!ws_.is_message_done()) {
    if (!std::exchange(in_message_, true)) arm_message();
    return read();
  }
  in_message_ = false;
  message_timer_.cancel();
  std::string text = beast::buffers_to_string(buffer_.data());
  buffer_.consume(buffer_.size());
  if (buffer_.capacity() > kReadBytes) buffer_.shrink_to_fit();
  on_message(std::move(text), std::exchange(lease_, BodyLease(context_.bodies)));
}

/// Half a message holds memory that others want: it gets as long as an HTTP body.
void WebSocketSession::arm_message() {
  message_timer_.expires_after(context_.options.http.body_timeout);
  message_timer_.async_wait([self = shared_from_this()](ErrorCode error) {
    if (error || !self->in_message_ || self->dropped_) return;
    if (self->message_timer_.expiry() > asio::steady_timer::clock_type::now()) return;
    self->lease_.release();
    self->close(CloseCode::try_again, "the message took too long");
  });
}

void WebSocketSession::refuse_message() {
  push(error_event(http_error(503, "too many messages are being read; try again"), {}));
  close(CloseCode::try_again, "too many messages are being read");
  buffer_.consume(buffer_.size());
  buffer_.shrink_to_fit();
  lease_.release();
  read();
}

/// The next message is read when this one has been understood: that keeps their order.
void WebSocketSession::on_message(std::string text, BodyLease lease) {
  if (text.size() <= kInlineParseBytes) {
    lease.release();
    protocol_->on_message(read_body(text), nullptr);
    return read();
  }
  auto held = std::make_shared<BodyLease>(std::move(lease));
  asio::post(context_.compute,
             [self = shared_from_this(), held = std::move(held), text = std::move(text)]() mutable {
               auto parsed = read_body(text);
               text = {};
               asio::post(self->executor(),
                          [self, held = std::move(held), parsed = std::move(parsed)]() mutable {
                            if (self->dropped_) return;
                            self->protocol_->on_message(std::move(parsed), std::move(held));
                            self->read();
                          });
             });
}

// --- writing ---------------------------------------------------------------------------------------------

void WebSocketSession::send(std::string frame) {
  unsent_bytes_.fetch_add(static_cast<int64_t>(frame.size()), std::memory_order_relaxed);
  asio::dispatch(executor(), [self = shared_from_this(), frame = std::move(frame)]() mutable {
    self->push(std::move(frame));
  });
}

void WebSocketSession::push(std::string frame) {
  if (closing_ || dropped_) return;
  outbox_.push_back(std::move(frame));
  const int64_t unsent = unsent_bytes();
  if (unsent > context_.options.stream.merge_unsent_bytes) lagged_ = true;
  if (unsent > context_.options.stream.max_unsent_bytes) {
    context_.metrics.add(monitoring::MetricId::slow_readers);
    return close(CloseCode::slow_reader, "reader too slow");
  }
  if (!writing_) write_next();
}

void WebSocketSession::write_next() {
  if (closing_) return begin_close();
  if (outbox_.empty()) return;
  writing_ = true;
  arm_writing();
  ws_.async_write(asio::buffer(outbox_.front()),
                  [self = shared_from_this()](ErrorCode error, size_t bytes) {
                    self->on_written(error, bytes);
                  });
}

void WebSocketSession::arm_writing() {
  const int socket = ws_.next_layer().next_layer().bytes().native_handle();
  write_progress_.begin(socket);
  write_timer_.expires_after(context_.options.stream.write_timeout);
  write_timer_.async_wait([self = shared_from_this(), socket](ErrorCode error) {
    if (error || self->dropped_) return;
    if (self->write_timer_.expiry() > asio::steady_timer::clock_type::now()) return;
    if (self->write_progress_.made(socket)) return self->arm_writing();
    self->context_.metrics.add(monitoring::MetricId::slow_readers);
    self->drop(false);
  });
}

void WebSocketSession::on_written(ErrorCode error, size_t) {
  if (dropped_) return;
  if (!closing_) write_timer_.cancel();
  if (error) return drop(false);
  unsent_bytes_.fetch_sub(static_cast<int64_t>(outbox_.front().size()), std::memory_order_relaxed);
  outbox_.pop_front();
  if (lagged_ && unsent_bytes() <= context_.options.stream.merge_unsent_bytes) {
    lagged_ = false;
    protocol_
        ->on_writable();  // queues frames; while writing_ is set, that begins no write of its own
  }
  writing_ = false;
  write_next();
  close_when_drained();
}

// --- closing ---------------------------------------------------------------------------------------------

void WebSocketSession::close(CloseCode code, std::string_view reason) {
  asio::dispatch(executor(), [self = shared_from_this(), code, why = std::string(reason)] {
    if (self->closing_ || self->dropped_) return;
    self->closing_ = true;
    self->close_code_ = code;
    self->close_reason_ = why;
    self->protocol_->on_closed(false);
    // Whatever is stuck in the socket or the handshake, the connection ends soon.
    self->drop_after_close_time();
    if (!self->writing_) self->begin_close();
  });
}

/// The client says goodbye. Its work stops now; the pending read ends only when the client has closed the
/// socket as well, for which it gets a moment.
void WebSocketSession::on_close_frame() {
  if (closing_) return;  // the answer to our own
  closing_ = true;
  close_sent_ = true;  // Beast answers
  protocol_->on_closed(true);
  drop_after_close_time();
}

void WebSocketSession::drop_after_close_time() {
  write_timer_.expires_after(kCloseTime);
  write_timer_.async_wait([self = shared_from_this()](ErrorCode error) {
    if (!error) self->drop(false);
  });
}

void WebSocketSession::begin_close() {
  if (std::exchange(close_sent_, true)) return;
  const auto code = static_cast<websocket::close_code>(close_code_);
  ws_.async_close(websocket::close_reason(code, close_reason_),
                  [self = shared_from_this()](ErrorCode) { self->drop(false); });
}

void WebSocketSession::response_left(const std::string& response_id, std::string last_frame) {
  unsent_bytes_.fetch_add(static_cast<int64_t>(last_frame.size()), std::memory_order_relaxed);
  asio::dispatch(executor(),
                 [self = shared_from_this(), response_id, frame = std::move(last_frame)]() mutable {
                   self->protocol_->response_left(response_id);
                   if (!frame.empty()) self->push(std::move(frame));
                   self->last_activity_ = std::chrono::steady_clock::now();
                   self->close_when_drained();
                 });
}

void WebSocketSession::close_when_drained() {
  if (draining_ && protocol_->in_flight() == 0 && outbox_.empty())
    close(CloseCode::going_away, "shutdown");
}

void WebSocketSession::stop_soon() {
  asio::post(executor(), [self = shared_from_this()] {
    if (self->dropped_ || std::exchange(self->draining_, true)) return;
    self->protocol_->stop_soon(self->context_.stop_grace);
    self->close_when_drained();
  });
}

void WebSocketSession::stop_now() {
  asio::post(executor(), [self = shared_from_this()] {
    self->protocol_->cancel_all();
    self->drop(true);
  });
}

void WebSocketSession::drop(bool client_closed) {
  if (std::exchange(dropped_, true)) return;
  closing_ = true;
  protocol_->on_closed(client_closed);
  ws_.next_layer().next_layer().bytes().close();
  message_timer_.cancel();
  tick_timer_.cancel();
  write_timer_.cancel();
  context_.connections.remove(this);
}

// --- time ------------------------------------------------------------------------------------------------

void WebSocketSession::schedule_tick() {
  tick_timer_.expires_after(std::min(ping_interval_, context_.options.stream.idle_timeout));
  tick_timer_.async_wait([self = shared_from_this()](ErrorCode error) {
    if (!error && !self->dropped_) self->tick();
  });
}

void WebSocketSession::set_pace(SessionPace pace) {
  coalesce_ms_.store(pace.coalesce.count(), std::memory_order_relaxed);
  asio::dispatch(executor(), [self = shared_from_this(), interval = pace.ping_interval] {
    if (self->dropped_ || interval == self->ping_interval_) return;
    self->ping_interval_ = interval;
    self->schedule_tick();  // in place of the one that waits
  });
}

void WebSocketSession::tick() {
  if (closing_) return;
  if (missed_pongs_ >= kMissedPongs) return close(CloseCode::ping_timeout, "no pong");
  const auto idle = std::chrono::steady_clock::now() - last_activity_;
  if (protocol_->in_flight() == 0 && idle >= context_.options.stream.idle_timeout) {
    return close(CloseCode::normal, "idle");
  }
  ++missed_pongs_;
  if (!std::exchange(pinging_, true)) {
    ws_.async_ping({}, [self = shared_from_this()](ErrorCode) { self->pinging_ = false; });
  }
  schedule_tick();
}

}  // namespace cedar::gateway
