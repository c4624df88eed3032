#pragma once
// The client's side of the WebSocket protocol: one response at a time.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "apps/server_event.h"
#include "apps/ws_url.h"
#include "core/result.h"

namespace cedar::apps {

/// What the server wants to see, and what the client wants to see of it.
struct StreamAccess {
  std::string key;  // for "Authorization: Bearer"; empty: none is sent
  std::string
      ca_file;  // PEM: who may have signed the server's certificate; empty: whom the system trusts
};

struct StreamCounts {
  ResponseStatus status = ResponseStatus::completed;
  int64_t prompt_tokens = 0;
  bool prompt_read = false;  // to its end
  int64_t completion_tokens = 0;
  std::optional<double> first_token_s;  // since the request was sent
  double last_token_s = 0;
};

class StreamClient {
 public:
  /// Errors: unavailable naming the address and the reason.
  static Result<std::unique_ptr<StreamClient>> connect(const WsUrl& url,
                                                       const StreamAccess& access = {});
  ~StreamClient();

  using OnText = std::function<void(std::string_view text, bool reasoning)>;
  /// Sends a request (the JSON text of a chat body) and passes the answer's text on as it comes. The first SIGINT
  /// cancels the response (as soon as the server has accepted it), another one ends the call. Errors: what the server
  /// said; unavailable when the connection is lost or the server breaks the protocol; cancelled after the second
  /// SIGINT. After these two the client is of no further use. A connection that was lost since the answer before, before
  /// the server has accepted this request, is made anew, once: servers end connections on which nothing happens.
  Result<StreamCounts> run(const std::string& request_json, const OnText& on_text);

 private:
  struct Impl;
  StreamClient(std::unique_ptr<Impl> impl, WsUrl url, StreamAccess access);
  std::unique_ptr<Impl> impl_;
  WsUrl url_;
  StreamAccess access_;
};

}  // namespace cedar::apps
