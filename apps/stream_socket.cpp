#include "apps/stream_socket.h"

#include <boost/asio/connect.hpp>
#include <nlohmann/json.hpp>

namespace cedar::apps {

namespace asio = boost::asio;
using asio::ip::tcp;

Result<tcp::socket> connect_tcp(asio::io_context& io, const WsUrl& url) {
  boost::system::error_code error;
  tcp::resolver resolver(io);
  tcp::socket socket(io);
  const auto addresses = resolver.resolve(url.host, url.port, error);
  if (!error) asio::connect(socket, addresses, error);
  if (error) return make_error(Errc::unavailable, error.message());
  return socket;
}

std::string explain(const UpgradeRefusal& refusal, bool had_key) {
  std::string text;
  if (refusal.status == 401) {
    text = had_key ? "the server does not know the API key"
                   : "the server asks for an API key: give --api-key-file or set CEDAR_API_KEY";
  } else if (refusal.status == 429) {
    text = "too many requests";
  } else {
    text = "the server refuses the WebSocket";
  }
  text += " (" + std::to_string(refusal.status) + ')';
  const auto body = nlohmann::json::parse(refusal.body, nullptr, false);
  const auto message = nlohmann::json::json_pointer("/error/message");
  if (body.is_object() && body.contains(message) && body[message].is_string()) {
    text += ": " + body[message].get<std::string>();
  }
  if (!refusal.retry_after.empty()) text += "; try again in " + refusal.retry_after + " s";
  return text;
}

}  // namespace cedar::apps
