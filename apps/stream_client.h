#pragma once
// The client's side of the WebSocket protocol: one response at a time.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/result.h"

namespace cedar::apps {

struct WsUrl {
  std::string host;
  std::string port;
  std::string path;
};
/// "ws://host[:port][/path]"; the path defaults to /v1/stream. Errors: invalid_argument, unsupported (wss).
Result<WsUrl> parse_ws_url(const std::string& url);

struct StreamCounts {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  double first_token_s = 0;
  double total_s = 0;
  std::string status;  // of response.done
};

class StreamClient {
 public:
  /// Errors: unavailable naming the address and the reason.
  static Result<std::unique_ptr<StreamClient>> connect(const WsUrl& url);
  ~StreamClient();

  using OnText = std::function<void(std::string_view text, bool reasoning)>;
  /// Sends a request (the JSON text of a chat body) and passes the answer's text on as it comes. The first SIGINT
  /// cancels the response (as soon as the server has accepted it), another one ends the call. Errors: what the server
  /// said; unavailable when the connection is lost; cancelled after the second SIGINT. After these two the client is
  /// of no further use.
  Result<StreamCounts> run(const std::string& request_json, const OnText& on_text);

 private:
  struct Impl;
  explicit StreamClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cedar::apps
