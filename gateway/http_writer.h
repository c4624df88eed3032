#pragma once
// What a handler may do with the connection that its request came on. All calls on the connection's strand.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cedar::gateway {

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

class HttpWriter {
 public:
  virtual ~HttpWriter() = default;
  /// A whole answer. Exactly one of respond() and begin_stream() is called per request.
  virtual void respond(HttpResponse response) = 0;
  /// The head of an answer whose body comes in pieces. `idle_piece` is sent when nothing else was for long.
  virtual void begin_stream(std::string_view content_type, std::string idle_piece) = 0;
  virtual void write(std::string_view piece) = 0;
  virtual void end_stream() = 0;
};

}  // namespace cedar::gateway
