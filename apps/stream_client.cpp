#include "apps/stream_client.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket/error.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <csignal>
#include <utility>

#include "apps/stream_socket.h"

namespace cedar::apps {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace websocket = boost::beast::websocket;
using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

struct StreamClient::Impl {
  asio::io_context io;
  std::unique_ptr<StreamSocket> ws;
  asio::signal_set signals{io};
  beast::flat_buffer buffer;
  bool reading = false;
  int64_t max_message_bytes = 0;  // 0: the server has not said

  // of the response that runs
  const OnText* on_text = nullptr;
  Clock::time_point begin;
  std::string response_id;      // empty until the server has accepted the request
  std::string last_id;          // of the response before this one
  std::string cancel_text;      // being written, or written
  bool interrupted = false;     // by a first SIGINT
  bool writing_cancel = false;  // cancel_text and the connection are in use
  bool lost = false;            // the connection is of no more use
  bool cut = false;             // and neither side has said why
  bool used = false;            // there was an answer
  StreamCounts counts;
  std::optional<Error> error;
  bool ended = false;

  Result<StreamCounts> run(const std::string& request_json, const OnText& on_text_of_this);
  void read();
  void on_read_failed(boost::system::error_code failed);
  Status check_length(size_t bytes);
  void send(const std::string& message);
  void on_frame(const std::string& frame);
  void on_event(const ServerEvent& event);
  bool concerns_this(const ServerEvent& event) const;
  void on_delta(const ServerEvent& event);
  void on_done(const ServerEvent& event);
  void await_interrupt();
  void cancel();
  void end_cut(const std::string& why) {
    cut = true;
    end_lost(make_error(Errc::unavailable, "connection lost: " + why));
  }
  void end_lost(Error e) {
    lost = true;
    end_with(std::move(e));
  }
  void end_with(Error e) {
    error = std::move(e);
    ended = true;
  }
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - begin).count(); }
};

StreamClient::StreamClient(std::unique_ptr<Impl> impl, WsUrl url, StreamAccess access)
    : impl_(std::move(impl)), url_(std::move(url)), access_(std::move(access)) {}

StreamClient::~StreamClient() {
  if (impl_ && impl_->ws) impl_->ws->close();  // not of one that has given its connection away
}

Result<std::unique_ptr<StreamClient>> StreamClient::connect(const WsUrl& url,
                                                            const StreamAccess& access) {
  auto impl = std::make_unique<Impl>();
  auto socket =
      url.secure ? connect_tls(impl->io, url, access) : connect_plain(impl->io, url, access);
  if (!socket) {
    return make_error(Errc::unavailable,
                      "cannot connect to " + url.text() + ": " + socket.error().context);
  }
  impl->ws = std::move(*socket);
  return std::unique_ptr<StreamClient>(new StreamClient(std::move(impl), url, access));
}

Result<StreamCounts> StreamClient::run(const std::string& request_json, const OnText& on_text) {
  auto counts = impl_->run(request_json, on_text);
  const bool stale = impl_->cut && impl_->used && impl_->response_id.empty() && !impl_->interrupted;
  if (!stale) return counts;
  CEDAR_TRY(const auto again, connect(url_, access_));
  impl_ = std::move(again->impl_);
  return impl_->run(request_json, on_text);
}

Result<StreamCounts> StreamClient::Impl::run(const std::string& request_json,
                                             const OnText& on_text_of_this) {
  on_text = &on_text_of_this;
  counts = {};
  error.reset();
  ended = false;
  interrupted = false;
  if (!response_id.empty()) {
    last_id = std::exchange(response_id, {});
    used = true;
  }
  cancel_text.clear();
  begin = Clock::now();
  boost::system::error_code ignored;
  io.restart();
  // Before the request is sent, so that from then on a signal ends the response and not the program.
  signals.add(SIGINT, ignored);
  await_interrupt();
  const std::string message =
      R"({"type":"response.create","resumable":false,"request":)" + request_json + '}';
  read();
  if (const Status fits = check_length(message.size()); !fits) {
    end_with(fits.error());
  } else {
    send(message);
  }
  while ((!ended || (writing_cancel && !lost)) && io.run_one() > 0) {
  }
  signals.clear(ignored);
  signals.cancel(ignored);
  io.poll();  // the handlers of what was cancelled refer to this call
  on_text = nullptr;
  if (error) return *error;
  return counts;
}

/// A long message waits for the server's limits, which come first on a connection.
Status StreamClient::Impl::check_length(size_t bytes) {
  constexpr size_t kSurelyTaken = 65536;
  constexpr std::chrono::seconds kPatience{5};
  if (bytes <= kSurelyTaken) return {};
  const auto deadline = Clock::now() + kPatience;
  while (max_message_bytes == 0 && !ended && Clock::now() < deadline) {
    io.run_one_for(std::chrono::milliseconds(100));
    if (io.stopped()) break;
  }
  if (max_message_bytes == 0 || bytes <= static_cast<size_t>(max_message_bytes)) return {};
  return make_error(Errc::invalid_argument, "message too long: " + std::to_string(bytes) +
                                                " bytes, the server takes " +
                                                std::to_string(max_message_bytes));
}

void StreamClient::Impl::send(const std::string& message) {
  constexpr std::chrono::seconds kLastWords{1};
  boost::system::error_code failed;
  if (!lost) failed = ws->write(message);
  if (!failed) return;
  // Why it was cut off may be among what the server said before.
  while (reading && !ended && io.run_one_for(kLastWords) > 0) {
  }
  if (!ended) end_cut(failed.message());
}

void StreamClient::Impl::await_interrupt() {
  signals.async_wait([this](boost::system::error_code aborted, int) {
    if (aborted) return;
    if (std::exchange(interrupted, true)) {
      return end_lost(make_error(Errc::cancelled, "interrupted"));
    }
    if (!response_id.empty()) cancel();
    await_interrupt();
  });
}

void StreamClient::Impl::cancel() {
  cancel_text = Json{{"type", "response.cancel"}, {"response_id", response_id}}.dump();
  writing_cancel = true;
  ws->async_write(cancel_text, [this](boost::system::error_code) { writing_cancel = false; });
}

void StreamClient::Impl::read() {
  if (std::exchange(reading, true)) return;  // a message that was too long has left one behind
  ws->async_read(buffer, [this](boost::system::error_code failed) {
    reading = false;
    if (failed) return on_read_failed(failed);
    const std::string frame = beast::buffers_to_string(buffer.data());
    buffer.consume(buffer.size());
    on_frame(frame);
    if (!ended) read();
  });
}

void StreamClient::Impl::on_read_failed(boost::system::error_code failed) {
  if (failed == websocket::error::closed && ws->close_code() == websocket::close_code::too_big) {
    return end_lost(
        make_error(Errc::unavailable, "message too long: the server closed the connection (1009)"));
  }
  end_cut(failed.message());
}

void StreamClient::Impl::on_frame(const std::string& frame) {
  if (!ws->got_text()) {
    return end_lost(make_error(Errc::unavailable, "the server breaks the protocol: binary data"));
  }
  const auto event = read_server_event(frame);
  if (!event) return end_lost(event.error());
  on_event(*event);
}

void StreamClient::Impl::on_event(const ServerEvent& event) {
  if (event.kind == ServerEventKind::created && response_id.empty()) {
    response_id = event.response_id;
    if (interrupted) cancel();
  }
  if (event.kind == ServerEventKind::session) max_message_bytes = event.max_message_bytes;
  if (!concerns_this(event) || ended) return;
  switch (event.kind) {
    case ServerEventKind::prompt_read: counts.prompt_read = true; break;
    case ServerEventKind::content:
    case ServerEventKind::reasoning: on_delta(event); break;
    case ServerEventKind::error: end_with(make_error(Errc::invalid_argument, event.text)); break;
    case ServerEventKind::done: on_done(event); break;
    default: break;
  }
}

bool StreamClient::Impl::concerns_this(const ServerEvent& event) const {
  if (event.response_id.empty() || event.response_id == response_id) return true;
  // A refusal names the id that the response would have had. What a cancellation that came too late is answered
  // with is about the response before this one.
  return event.kind == ServerEventKind::error && response_id.empty() &&
         event.response_id != last_id;
}

void StreamClient::Impl::on_delta(const ServerEvent& event) {
  counts.prompt_read = true;
  counts.last_token_s = elapsed();
  if (!counts.first_token_s) counts.first_token_s = counts.last_token_s;
  (*on_text)(event.text, event.kind == ServerEventKind::reasoning);
}

void StreamClient::Impl::on_done(const ServerEvent& event) {
  if (event.status == ResponseStatus::failed) {
    return end_with(make_error(Errc::internal, event.text));
  }
  counts.status = event.status;
  counts.prompt_tokens = event.prompt_tokens;
  counts.completion_tokens = event.completion_tokens;
  // The last token often has no text (end of answer), but comes with the end.
  if (event.status != ResponseStatus::cancelled) counts.last_token_s = elapsed();
  ended = true;
}

}  // namespace cedar::apps
