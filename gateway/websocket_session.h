#pragma once
// One WebSocket connection: frames in, frames out, one write at a time, pings, limits. What the frames mean
// is StreamProtocol's business.

#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/websocket/stream.hpp>

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "gateway/connection_set.h"
#include "gateway/context.h"
#include "gateway/frame_target.h"
#include "gateway/handed_over_socket.h"
#include "gateway/stream_protocol.h"
#include "gateway/websocket_handshake.h"
#include "gateway/write_progress.h"

namespace cedar::gateway {

class WebSocketSession final : public FrameTarget,
                               public Connection,
                               public std::enable_shared_from_this<WebSocketSession> {
 public:
  /// `stream`'s executor is a strand of its own, and nothing is pending on it. `ahead`: what was read from it
  /// behind the upgrade request. `key`: the client's; null where none is asked for.
  WebSocketSession(GatewayContext& context, AnyStream stream, std::string_view ahead,
                   KeyAccount* key);
  ~WebSocketSession() override;
  void run(UpgradeRequest request);

  void send(std::string frame) override;
  void close(CloseCode code, std::string_view reason) override;
  int64_t unsent_bytes() const override { return unsent_bytes_.load(std::memory_order_relaxed); }
  void set_pace(SessionPace pace) override;
  std::chrono::milliseconds coalesce() const override {
    return std::chrono::milliseconds(coalesce_ms_.load(std::memory_order_relaxed));
  }
  void response_left(const std::string& response_id, std::string last_frame) override;

  void stop_soon() override;
  void stop_now() override;

 private:
  using ErrorCode = boost::system::error_code;

  void on_accepted(ErrorCode error);
  void read();
  void on_read(ErrorCode error);
  void on_message(std::string text, BodyLease lease);
  void arm_message();
  void refuse_message();
  void push(std::string frame);
  void write_next();
  void arm_writing();
  void on_written(ErrorCode error, size_t bytes);
  void begin_close();
  void on_close_frame();
  void drop_after_close_time();
  void tick();
  void schedule_tick();
  void close_when_drained();
  void drop(bool client_closed);

  boost::asio::any_io_executor executor() { return ws_.get_executor(); }

  GatewayContext& context_;
  KeyAccount* key_;
  boost::beast::websocket::stream<HandedOverSocket> ws_;
  boost::beast::flat_buffer buffer_;         // the message so far
  BodyLease lease_;                          // its share of what may be read at once
  bool in_message_ = false;                  // some of a message is here, its end is not
  boost::asio::steady_timer message_timer_;  // for its end
  boost::asio::steady_timer tick_timer_;
  boost::asio::steady_timer write_timer_;  // a write without progress, or the closing handshake
  WriteProgress write_progress_;
  std::shared_ptr<StreamProtocol> protocol_;
  UpgradeRequest request_;
  std::deque<std::string> outbox_;  // the first is being written while writing_
  std::atomic<int64_t> unsent_bytes_{0};
  std::atomic<int64_t> coalesce_ms_{0};
  std::chrono::milliseconds ping_interval_;
  std::chrono::steady_clock::time_point last_activity_;
  int missed_pongs_ = 0;
  CloseCode close_code_ = CloseCode::normal;
  std::string close_reason_;
  bool writing_ = false;
  bool pinging_ = false;
  bool closing_ = false;  // nothing more is queued; a close frame follows what is being written
  bool close_sent_ = false;
  bool dropped_ = false;
  bool lagged_ = false;  // merging since the outbox was long
  bool draining_ = false;
};

}  // namespace cedar::gateway
