#pragma once
// HTTP requests out of the bytes of one connection, one after the other. Knows no socket: bytes are put in as
// they come, and what was sent ahead of the request's end stays for the next one.

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <cstddef>
#include <optional>
#include <string_view>

namespace cedar::gateway {

class RequestReader {
 public:
  using Request = boost::beast::http::request<boost::beast::http::string_body>;
  using ErrorCode = boost::system::error_code;

  /// more: the bytes end before the next step.  header: it can be looked at, the body follows; reported once.
  /// request: all of it is here.  broken: error() says why; nothing further can be understood.
  enum class Step { more, header, request, broken };

  RequestReader(size_t max_header_bytes, size_t max_body_bytes)
      : max_header_bytes_(max_header_bytes), max_body_bytes_(max_body_bytes) {
    begin();
  }

  /// Forgets the request; the bytes behind it are the next one's.
  void begin();
  void put(std::string_view bytes);
  Step advance();

  /// REQUIRES: advance() has returned Step::header.
  Request& request() { return parser_->get(); }
  /// What of the body is here. The same requirement.
  size_t body_bytes() const { return header_reported_ ? parser_->get().body().size() : 0; }
  ErrorCode error() const { return error_; }
  /// Bytes that no request has taken yet.
  size_t bytes_ahead() const { return buffer_.size(); }
  std::string_view ahead() const {
    return {static_cast<const char*>(buffer_.data().data()), buffer_.size()};
  }
  void clear() { buffer_.clear(); }

 private:
  size_t max_header_bytes_;
  size_t max_body_bytes_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  bool header_reported_ = false;
  ErrorCode error_;
};

}  // namespace cedar::gateway
