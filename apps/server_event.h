#pragma once
// What a server says on the WebSocket, as the client needs it. The server is not trusted: every field is
// checked before it is used.

#include <cstdint>
#include <string>
#include <string_view>

#include "core/result.h"

namespace cedar::apps {

enum class ServerEventKind : uint8_t {
  other,    // known to the protocol or not, of no interest here
  session,  // the first one of a connection
  created,
  prompt_read,
  content,
  reasoning,
  error,
  done,
};

enum class ResponseStatus : uint8_t { completed, incomplete, cancelled, failed };

std::string_view to_string(ResponseStatus status);

struct ServerEvent {
  ServerEventKind kind = ServerEventKind::other;
  std::string response_id;  // empty: about the connection
  std::string text;         // of a delta; what went wrong of an error, or of a response that failed
  ResponseStatus status = ResponseStatus::completed;  // done
  int64_t max_message_bytes = 0;                      // session; 0: not told
  int64_t prompt_tokens = 0;                          // done: of the prompt, whether read or not
  int64_t completion_tokens = 0;                      // done
};

/// `frame` is one message. Errors: unavailable, naming the field that breaks the protocol.
Result<ServerEvent> read_server_event(std::string_view frame);

}  // namespace cedar::apps
