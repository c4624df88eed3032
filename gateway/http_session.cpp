#include "gateway/http_session.h"

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>

#include <utility>

#include "gateway/handlers.h"
#include "gateway/http_format.h"
#include "gateway/page.h"
#include "gateway/sse.h"
#include "gateway/websocket_handshake.h"
#include "gateway/websocket_session.h"

namespace cedar::gateway {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

namespace {

constexpr size_t kMaxBytesAhead = 65536;  // of pipelined requests, while an answer runs
constexpr std::chrono::milliseconds kLingerTime{2000};
constexpr std::chrono::milliseconds kLingerTimeAtStop{200};

}  // namespace

HttpSession::HttpSession(GatewayContext& context, AnyStream stream)
    : context_(context),
      stream_(std::move(stream)),
      read_timer_(stream_.get_executor()),
      write_timer_(stream_.get_executor()),
      reader_(static_cast<size_t>(context.options.http.max_header_bytes),
              static_cast<size_t>(context.options.http.max_body_bytes)),
      answer_lease_(context.answers),
      body_lease_(context.bodies) {
  context_.metrics.add(monitoring::MetricId::connections);
}

HttpSession::~HttpSession() {
  context_.connections.remove(this);
  context_.metrics.add(monitoring::MetricId::connections, -1);
}

void HttpSession::run() {
  context_.connections.add(shared_from_this());
  asio::dispatch(executor(), [self = shared_from_this()] {
    if (self->stream_.bytes().has_handshake()) return self->shake_hands();
    self->next_request();
  });
}

/// In state idle: whatever ends an idle connection ends this.
void HttpSession::shake_hands() {
  arm_reading(context_.options.http.tls_handshake_timeout);
  stream_.bytes().async_handshake(IoHandler([self = shared_from_this()](ErrorCode error, size_t) {
    if (self->state_ == State::closed) return;
    if (error) return self->close();
    self->next_request();
  }));
}

void HttpSession::stop_soon() {
  asio::post(executor(), [self = shared_from_this()] {
    self->keep_alive_ = false;
    if (self->state_ == State::idle) self->close();
  });
}

void HttpSession::stop_now() {
  asio::post(executor(), [self = shared_from_this()] { self->client_gone(); });
}

// --- reading a request -----------------------------------------------------------------------------------

void HttpSession::next_request() {
  state_ = State::idle;
  route_ = {};
  admission_ = {};
  request_id_.clear();
  head_only_ = false;
  answer_lease_.release();
  body_lease_.release();
  reader_.begin();
  arm_reading(context_.options.http.idle_timeout);
  advance();
}

/// The only place that reads. Called again whenever the state changes to one that reads.
void HttpSession::read_more() {
  if (read_pending_ || client_eof_) return;
  if (state_ == State::upgrading || state_ == State::closed) return;
  if (state_ == State::answering && reader_.bytes_ahead() >= kMaxBytesAhead) return;
  read_pending_ = true;
  stream_.async_read_some(
      asio::buffer(incoming_),
      [self = shared_from_this()](ErrorCode error, size_t bytes) { self->on_read(error, bytes); });
}

void HttpSession::on_read(ErrorCode error, size_t bytes) {
  read_pending_ = false;
  if (state_ == State::closed) return;
  if (state_ == State::closing) return error ? close() : read_more();  // nobody wants it
  reader_.put({incoming_.data(), bytes});
  if (state_ == State::upgrading && (!error || error == asio::error::operation_aborted)) {
    return upgrade_when_quiet();
  }
  if (error == asio::error::eof) return on_client_eof();
  if (error) return client_gone();
  if (state_ == State::answering) return read_more();
  advance();
}

void HttpSession::on_client_eof() {
  client_eof_ = true;
  if (state_ != State::answering || generating_) client_gone();
}

/// Goes on with the request as far as the bytes reach.
void HttpSession::advance() {
  while (true) {
    if (state_ == State::idle && reader_.bytes_ahead() > 0) {
      state_ = State::reading;
      arm_reading(context_.options.http.header_timeout);
    }
    const RequestReader::Step step = reader_.advance();
    if (!body_lease_.grow_to(static_cast<int64_t>(reader_.body_bytes()))) {
      return refuse(http_error(503, "too many request bodies are being read; try again"));
    }
    switch (step) {
      case RequestReader::Step::more: return client_eof_ ? close() : read_more();
      case RequestReader::Step::header:
        if (!on_header()) return;
        break;
      case RequestReader::Step::broken: return refuse_broken();
      case RequestReader::Step::request:
        read_timer_.cancel();
        handle_request();
        return read_more();
    }
  }
}

/// False when it was refused.
bool HttpSession::on_header() {
  const auto& request = reader_.request();
  keep_alive_ = request.keep_alive() && !context_.stopping;
  head_only_ = request.method() == http::verb::head;
  chunked_ = request.version() >= 11;
  const auto id = request.find("X-Request-Id");
  if (id != request.end()) request_id_ = clean_request_id({id->value().data(), id->value().size()});
  const auto method = request.method_string();
  const auto target = request.target();
  route_ = find_route({method.data(), method.size()}, {target.data(), target.size()});
  if (const auto refusal = admit(request, route_, context_, admission_)) {
    refuse(*refusal);
    return false;
  }
  if (beast::iequals(request[http::field::expect], "100-continue")) {
    send("HTTP/1.1 100 Continue\r\n\r\n");
  }
  arm_reading(context_.options.http.body_timeout);
  return true;
}

void HttpSession::refuse_broken() {
  const ErrorCode error = reader_.error();
  const HttpOptions& options = context_.options.http;
  head_only_ = false;
  if (error == http::error::header_limit) {
    refuse(http_error(
        431, "the header is longer than " + std::to_string(options.max_header_bytes) + " bytes"));
  } else if (error == http::error::body_limit) {
    refuse(http_error(
        413, "the body is longer than " + std::to_string(options.max_body_bytes) + " bytes"));
  } else {
    refuse(http_error(400, "not a valid HTTP request: " + error.message()));
  }
}

/// The rest of the connection is not understood: answer, then close.
void HttpSession::refuse(const ApiError& error) {
  keep_alive_ = false;
  reader_.begin();  // lets go of the body
  body_lease_.release();
  respond(error_response(error));
  read_more();
}

// --- answering -------------------------------------------------------------------------------------------

void HttpSession::handle_request() {
  state_ = State::answering;
  if (context_.stopping && is_work(route_.endpoint)) {
    return respond(error_response(http_error(503, "the server stops")));
  }
  if (auto preflight = answer_preflight(reader_.request(), context_.options.http)) {
    return respond(std::move(*preflight));
  }
  switch (route_.endpoint) {
    case Endpoint::chat_completions: return handle_generate(ApiKind::chat);
    case Endpoint::completions: return handle_generate(ApiKind::completion);
    case Endpoint::stream: return upgrade();
    case Endpoint::tokenize:
    case Endpoint::detokenize: return handle_tokens();
    case Endpoint::page: {
      const auto known = reader_.request()[http::field::if_none_match];
      return respond(page_response({known.data(), known.size()}));
    }
    default: return respond(answer_get(route_, context_));
  }
}

void HttpSession::handle_generate(ApiKind kind) {
  if (client_eof_) return client_gone();
  KeyUse use;
  if (!enter(use)) return;
  generating_ = true;
  asio::post(context_.compute,
             [self = shared_from_this(), kind, use = std::move(use), lease = std::move(body_lease_),
              body = std::move(reader_.request().body())]() mutable {
               auto prepared = read_generate_request(kind, body, self->context_.card);
               lease.release();
               asio::post(self->executor(),
                          [self, use = std::move(use), prepared = std::move(prepared)]() mutable {
                            self->start_generation(std::move(prepared), std::move(use));
                          });
             });
}

void HttpSession::handle_tokens() {
  KeyUse use;
  if (!enter(use)) return;
  asio::post(context_.compute, [self = shared_from_this(), use = std::move(use),
                                lease = std::move(body_lease_),
                                body = std::move(reader_.request().body())]() mutable {
    const auto work = self->route_.endpoint == Endpoint::tokenize ? tokenize : detokenize;
    auto result = work(body, self->context_.card);
    use.release();  // both before the client has the answer and sends more
    lease.release();
    asio::post(self->executor(), [self, response = std::move(result)]() mutable {
      self->respond(std::move(response));
    });
  });
}

/// A place for the request in its key's limits. False: it was refused.
bool HttpSession::enter(KeyUse& use) {
  if (admission_.key == nullptr) return true;
  if (const auto refusal = admission_.key->enter()) {
    respond(error_response(*refusal));
    return false;
  }
  use = KeyUse(admission_.key);
  return true;
}

void HttpSession::start_generation(Result<PreparedRequest> prepared, KeyUse use) {
  if (state_ != State::answering) return;  // the client left meanwhile
  if (!prepared) {
    use.release();
    return respond(error_response(to_api_error(prepared.error())));
  }
  std::shared_ptr<GenerationObserver> responder;
  if (prepared->api.stream) {
    responder = std::make_shared<SseResponder>(shared_from_this(), *prepared, context_.card);
  } else {
    responder = std::make_shared<JsonResponder>(shared_from_this(), *prepared, context_.card);
  }
  generation_ = Generation::start(context_, executor(), std::move(*prepared), std::move(responder),
                                  std::move(use));
}

void HttpSession::upgrade() {
  if (auto refusal = refuse_upgrade(reader_.request(), context_.options.http))
    return respond(std::move(*refusal));
  state_ = State::upgrading;
  upgrade_when_quiet();
}

/// A socket moves only when nothing is pending on it: what is ends first and comes back here.
void HttpSession::upgrade_when_quiet() {
  if (writing_) return;
  if (read_pending_) {
    stream_.bytes().cancel_read();
    return;
  }
  state_ = State::closed;  // of this object; the socket moves on
  context_.metrics.count_http(route_.label, 101);
  std::make_shared<WebSocketSession>(context_, std::move(stream_), reader_.ahead(), admission_.key)
      ->run(std::move(reader_.request()));
}

void HttpSession::client_gone() {
  if (generation_) generation_->abandon();
  close();
}

void HttpSession::respond(HttpResponse response) {
  if (state_ == State::closed) return;
  state_ = State::answering;
  generating_ = false;
  read_timer_.cancel();
  if (!answer_lease_.grow_to(static_cast<int64_t>(response.body.size()))) {
    response =
        error_response(http_error(503, "too many large answers wait for their readers; try again"));
  }
  context_.metrics.count_http(route_.label, response.status);
  HeadOptions options;
  options.keep_alive = keep_alive_;
  options.request_id = request_id_;
  options.allow_origin = admission_.allow_origin;
  std::string bytes = format_head(response, options);
  if (!head_only_) bytes += response.body;
  answer_complete_ = true;
  send(bytes);
}

void HttpSession::begin_stream(std::string_view content_type, std::string idle_piece) {
  if (state_ == State::closed) return;
  context_.metrics.count_http(route_.label, 200);
  if (!chunked_) keep_alive_ = false;
  HttpResponse response;
  response.content_type = std::string(content_type);
  HeadOptions options;
  options.keep_alive = keep_alive_;
  options.chunked = chunked_;
  options.until_close = !chunked_;
  options.request_id = request_id_;
  options.allow_origin = admission_.allow_origin;
  idle_piece_ = std::move(idle_piece);
  send(format_head(response, options));
  tick_idle_stream();
}

void HttpSession::write(std::string_view piece) {
  silent_ = false;
  if (chunked_) {
    send(format_chunk(piece));
  } else {
    send(piece);
  }
}

void HttpSession::end_stream() {
  if (state_ == State::closed) return;
  read_timer_.cancel();
  idle_piece_.clear();
  generating_ = false;
  answer_complete_ = true;
  send(chunked_ ? kLastChunk : std::string_view());
}

// --- writing ---------------------------------------------------------------------------------------------

void HttpSession::send(std::string_view bytes) {
  if (state_ == State::closed) return;
  out_.append(bytes);
  const auto unsent = static_cast<int64_t>(out_.size() + in_flight_.size());
  // A whole answer may be longer than the bound; what must not pile up is a stream nobody reads.
  if (!answer_complete_ && unsent > context_.options.http.max_unsent_bytes) {
    context_.metrics.add(monitoring::MetricId::slow_readers);
    return client_gone();
  }
  if (!writing_) write_next();
}

void HttpSession::write_next() {
  if (out_.empty()) {
    if (state_ == State::upgrading) return upgrade_when_quiet();
    if (std::exchange(answer_complete_, false)) answer_done();
    return;
  }
  writing_ = true;
  in_flight_.swap(out_);
  arm_writing();
  asio::async_write(
      stream_, asio::buffer(in_flight_),
      [self = shared_from_this()](ErrorCode error, size_t) { self->on_written(error); });
}

void HttpSession::on_written(ErrorCode error) {
  writing_ = false;
  write_timer_.cancel();
  in_flight_.clear();
  if (state_ == State::closed) return;
  if (error) return client_gone();
  write_next();
}

void HttpSession::answer_done() {
  generation_.reset();
  if (keep_alive_ && !context_.stopping) return next_request();
  linger();
}

/// Closing with unread input would reset the connection and could take the answer with it: say that nothing
/// more comes, then read until the client closes, for a short while.
void HttpSession::linger() {
  if (client_eof_) return close();
  state_ = State::closing;
  stream_.bytes().end_sending();
  reader_.clear();
  arm_reading(context_.stopping ? kLingerTimeAtStop : kLingerTime);
  read_more();
}

void HttpSession::close() {
  if (state_ == State::closed) return;
  state_ = State::closed;
  stream_.bytes().close();
  read_timer_.cancel();
  write_timer_.cancel();
  answer_lease_.release();
  body_lease_.release();
  generation_.reset();
}

// --- time ------------------------------------------------------------------------------------------------

void HttpSession::arm_reading(std::chrono::milliseconds limit) {
  read_timer_.expires_after(limit);  // cancels the wait before this one
  read_timer_.async_wait([self = shared_from_this()](ErrorCode error) {
    if (!error) self->on_reading_timeout();
  });
}

void HttpSession::on_reading_timeout() {
  // A timer that had fired when its operation ended is late by one queue entry.
  if (read_timer_.expiry() > asio::steady_timer::clock_type::now()) return;
  if (state_ == State::reading) {
    keep_alive_ = false;
    return respond(error_response(http_error(408, "the request did not arrive in time")));
  }
  if (state_ == State::idle || state_ == State::closing) close();
}

void HttpSession::arm_writing() {
  const int socket = stream_.bytes().native_handle();
  write_progress_.begin(socket);
  write_timer_.expires_after(context_.options.http.write_timeout);
  write_timer_.async_wait([self = shared_from_this(), socket](ErrorCode error) {
    if (error || !self->writing_ || self->state_ == State::closed) return;
    if (self->write_timer_.expiry() > asio::steady_timer::clock_type::now()) return;
    if (self->write_progress_.made(socket)) return self->arm_writing();
    self->context_.metrics.add(monitoring::MetricId::slow_readers);
    self->client_gone();
  });
}

void HttpSession::tick_idle_stream() {
  silent_ = true;
  read_timer_.expires_after(context_.options.http.keep_alive_interval);
  read_timer_.async_wait([self = shared_from_this()](ErrorCode error) {
    if (error || self->idle_piece_.empty() || self->state_ != State::answering) return;
    if (self->silent_ && !self->writing_) self->write(self->idle_piece_);
    self->tick_idle_stream();
  });
}

}  // namespace cedar::gateway
