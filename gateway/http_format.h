#pragma once
// The bytes of HTTP/1.1 answers. Written by hand: the answers are simple, and Beast's serialisers cost more
// compile time than the rest of the gateway.

#include <string>
#include <string_view>

#include "gateway/http_writer.h"

namespace cedar::gateway {

std::string_view reason_phrase(int status);

struct HeadOptions {
  bool keep_alive = true;
  bool chunked = false;      // else Content-Length, unless `until_close`
  bool until_close = false;  // HTTP/1.0 stream: the body ends with the connection
  std::string request_id;    // echoed when not empty
  std::string
      allow_origin;  // a page of this origin may read the answer; empty: of the own origin only
};

/// Status line and headers, with the empty line.
std::string format_head(const HttpResponse& response, const HeadOptions& options);

/// One chunk of a chunked body. REQUIRES: piece is not empty, which would end the body.
std::string format_chunk(std::string_view piece);
constexpr std::string_view kLastChunk = "0\r\n\r\n";

/// A client's X-Request-Id as far as it may be echoed: visible ASCII, at most 128 bytes; else empty.
std::string clean_request_id(std::string_view value);

}  // namespace cedar::gateway
