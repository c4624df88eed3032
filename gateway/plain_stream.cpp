#include "gateway/byte_stream.h"

namespace cedar::gateway {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(tcp::socket socket) : socket_(std::move(socket)) {}

  asio::any_io_executor executor() override { return socket_.get_executor(); }
  void async_handshake(IoHandler handler) override {
    asio::post(socket_.get_executor(),
               [handler = std::move(handler)]() mutable { handler({}, 0); });
  }
  void async_read_some(asio::mutable_buffer buffer, IoHandler handler) override {
    socket_.async_read_some(buffer, std::move(handler));
  }
  void async_write_some(const OutgoingBuffers& buffers, IoHandler handler) override {
    socket_.async_write_some(buffers, std::move(handler));
  }
  void cancel_read() override {
    boost::system::error_code ignored;
    socket_.cancel(ignored);
  }
  void end_sending() override {
    boost::system::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }
  void close() override {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }
  int native_handle() override { return socket_.native_handle(); }

 private:
  tcp::socket socket_;
};

}  // namespace

std::shared_ptr<ByteStream> make_plain_stream(tcp::socket socket) {
  return std::make_shared<PlainStream>(std::move(socket));
}

}  // namespace cedar::gateway
