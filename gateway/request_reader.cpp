#include "gateway/request_reader.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>

namespace cedar::gateway {

namespace asio = boost::asio;
namespace http = boost::beast::http;

void RequestReader::begin() {
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(max_header_bytes_));
  parser_->body_limit(static_cast<uint64_t>(max_body_bytes_));
  header_reported_ = false;
  error_ = {};
}

void RequestReader::put(std::string_view bytes) {
  buffer_.commit(
      asio::buffer_copy(buffer_.prepare(bytes.size()), asio::buffer(bytes.data(), bytes.size())));
}

RequestReader::Step RequestReader::advance() {
  while (true) {
    if (parser_->is_header_done() && !header_reported_) {
      header_reported_ = true;
      parser_->eager(true);  // the body as far as it is here, not one piece of it
      return Step::header;
    }
    if (parser_->is_done()) return Step::request;
    if (buffer_.size() == 0) return Step::more;
    const size_t used = parser_->put(buffer_.data(), error_);
    buffer_.consume(used);
    if (error_ && error_ != http::error::need_more) return Step::broken;
    if (used > 0) continue;
    // Not taken piece by piece: header lines, and between the chunks of a body sizes and trailers.
    if (buffer_.size() > max_header_bytes_) {
      error_ = http::error::header_limit;
      return Step::broken;
    }
    return Step::more;
  }
}

}  // namespace cedar::gateway
