#include "gateway/node_page.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <chrono>
#include <list>
#include <thread>
#include <utility>

namespace cedar::gateway {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Response = http::response<http::string_body>;

namespace {

constexpr uint32_t kMaxHeaderBytes = 8192;
constexpr std::chrono::milliseconds kAcceptPause{100};

/// One exchange on one connection.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(tcp::socket socket, const NodePageSources& sources, std::list<Exchange*>& open,
           std::chrono::milliseconds timeout)
      : stream_(std::move(socket)), sources_(sources), open_(open), timeout_(timeout) {
    place_ = open_.insert(open_.end(), this);
  }
  ~Exchange() { forget(); }
  /// What it waits for fails.
  void close() {
    forget();
    stream_.close();
  }

  void run() {
    parser_.header_limit(kMaxHeaderBytes);
    stream_.expires_after(timeout_);
    // The head only: nobody is waited for to send a body.
    http::async_read_header(stream_, buffer_, parser_,
                            [self = shared_from_this()](beast::error_code error, size_t) {
                              if (!error) self->answer();
                            });
  }

 private:
  void answer() {
    const auto& request = parser_.get();
    response_.version(11);
    response_.keep_alive(false);
    response_.set(http::field::content_type, "application/json");
    fill(request.method(), request.target().substr(0, request.target().find('?')));
    response_.prepare_payload();
    if (request.method() == http::verb::head) response_.body().clear();
    http::async_write(stream_, response_, [self = shared_from_this()](beast::error_code, size_t) {
      beast::error_code ignored;
      self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    });
  }
  void fill(http::verb method, beast::string_view path) {
    if (method != http::verb::get && method != http::verb::head) {
      response_.result(http::status::method_not_allowed);
      response_.set(http::field::allow, "GET, HEAD");
      response_.body() = R"({"error":"only GET"})";
    } else if (path == "/livez") {
      response_.body() = R"({"status":"ok"})";
    } else if (path == "/ready" || path == "/readyz") {
      const bool ready = sources_.ready();
      response_.body() = ready ? R"({"status":"ok"})" : R"({"status":"unavailable"})";
      if (!ready) response_.result(http::status::service_unavailable);
    } else if (path == "/metrics") {
      response_.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
      response_.body() = sources_.metrics();
    } else {
      response_.result(http::status::not_found);
      response_.body() = R"({"error":"a node has /livez, /ready and /metrics"})";
    }
  }

  void forget() {
    if (place_ != open_.end()) open_.erase(std::exchange(place_, open_.end()));
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  http::request_parser<http::empty_body> parser_;
  Response response_;
  const NodePageSources& sources_;
  std::list<Exchange*>& open_;
  std::list<Exchange*>::iterator place_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

struct NodePage::Impl {
  NodePageOptions options;
  NodePageSources sources;
  std::list<Exchange*> open;  // the oldest first; outlives them, as they die with `io`
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::steady_timer pause{io};
  uint16_t port = 0;
  std::thread thread;

  Status listen();
  void accept();
};

Status NodePage::Impl::listen() {
  beast::error_code error;
  const auto address =
      asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
  if (error) {
    return make_error(Errc::invalid_argument,
                      "host: must be an IP address, got \"" + options.host + '"');
  }
  const tcp::endpoint endpoint(address, options.port);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return make_error(Errc::io_error, "cannot listen on " + options.host + " port " +
                                          std::to_string(options.port) + ": " + error.message());
  }
  port = acceptor.local_endpoint().port();
  return {};
}

void NodePage::Impl::accept() {
  acceptor.async_accept([this](beast::error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) {
      // The oldest had the most time to say what it wants. Refusing the new one instead would let a few silent clients keep
      // probes away, and a node be restarted for it.
      const auto many = static_cast<int64_t>(open.size());
      if (many >= options.max_connections) open.front()->close();
      std::make_shared<Exchange>(std::move(socket), sources, open,
                                 std::chrono::milliseconds(options.timeout_ms))
          ->run();
    }
    if (!error) return accept();
    // Out of descriptors, most likely: not at once again.
    pause.expires_after(kAcceptPause);
    pause.async_wait([this](beast::error_code stopped) {
      if (!stopped) accept();
    });
  });
}

Result<std::unique_ptr<NodePage>> NodePage::start(const NodePageOptions& options,
                                                  NodePageSources sources) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->sources = std::move(sources);
  CEDAR_CHECK_OK(impl->listen());
  impl->accept();
  impl->thread = std::thread([self = impl.get()] { self->io.run(); });
  return std::unique_ptr<NodePage>(new NodePage(std::move(impl)));
}

NodePage::NodePage(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

NodePage::~NodePage() {
  impl_->io.stop();
  impl_->thread.join();
}

uint16_t NodePage::port() const { return impl_->port; }

}  // namespace cedar::gateway
