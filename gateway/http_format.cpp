#include "gateway/http_format.h"

#include <algorithm>
#include <cstdio>

namespace cedar::gateway {

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 426: return "Upgrade Required";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 499: return "Client Closed Request";
    case 500: return "Internal Server Error";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Status";
  }
}

std::string format_head(const HttpResponse& response, const HeadOptions& options) {
  const bool bodiless = response.status == 304 || response.status == 204;
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + ' ';
  head.append(reason_phrase(response.status)).append("\r\nServer: cedar\r\n");
  if (response.status != 204)
    head.append("Content-Type: ").append(response.content_type).append("\r\n");
  if (options.chunked) {
    head += "Transfer-Encoding: chunked\r\n";
  } else if (!options.until_close && !bodiless) {
    head += "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
  }
  if (options.chunked || options.until_close) head += "Cache-Control: no-cache\r\n";
  if (!options.request_id.empty()) head += "X-Request-Id: " + options.request_id + "\r\n";
  if (!options.allow_origin.empty()) {
    head += "Access-Control-Allow-Origin: " + options.allow_origin +
            "\r\nAccess-Control-Expose-Headers: X-Request-Id, Retry-After\r\nVary: Origin\r\n";
  }
  for (const auto& [name, value] : response.headers) head += name + ": " + value + "\r\n";
  head += options.keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

std::string format_chunk(std::string_view piece) {
  char size[24];
  std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
  std::string chunk(size);
  chunk.append(piece).append("\r\n");
  return chunk;
}

std::string clean_request_id(std::string_view value) {
  constexpr size_t kLongest = 128;
  const bool visible =
      std::all_of(value.begin(), value.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  return visible && value.size() <= kLongest ? std::string(value) : std::string();
}

}  // namespace cedar::gateway
