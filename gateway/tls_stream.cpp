#include "gateway/tls_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <string>

namespace cedar::gateway {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr size_t kRecordBytes = 16384;  // TLS makes no larger ones
// What a client may send besides its data once the handshake is over: new keys, warnings. Each costs cryptography and may
// ask for an answer, so that without a bound one client could keep the thread busy.
constexpr int64_t kFreeControlRecords = 32;
constexpr int64_t kBytesPerControlRecord = 32768;

ErrorCode protocol_error() {
  return boost::system::errc::make_error_code(boost::system::errc::protocol_error);
}

/// OpenSSL works on two memory buffers; this class carries bytes between them and the socket. Reads and writes of the
/// owner and of the socket are apart from each other: a read of the socket goes on when the owner cancels its own, and
/// OpenSSL may have something to write while the owner only reads.
class TlsStream final : public ByteStream, public std::enable_shared_from_this<TlsStream> {
 public:
  TlsStream(tcp::socket socket, std::shared_ptr<const TlsContext> context)
      : socket_(std::move(socket)),
        context_(std::move(context)),
        ssl_(SSL_new(context_->native())),
        from_peer_(BIO_new(BIO_s_mem())),
        to_peer_(BIO_new(BIO_s_mem())) {
    SSL_set_bio(ssl_.get(), from_peer_, to_peer_);  // which owns them from here on
    SSL_set_accept_state(ssl_.get());
    SSL_set_msg_callback(ssl_.get(), &TlsStream::on_message);
    SSL_set_msg_callback_arg(ssl_.get(), this);
  }

  asio::any_io_executor executor() override { return socket_.get_executor(); }
  bool has_handshake() const override { return true; }
  int native_handle() override { return socket_.native_handle(); }

  void async_handshake(IoHandler handler) override {
    handshake_ = std::move(handler);
    shake_hands();
  }

  void async_read_some(asio::mutable_buffer buffer, IoHandler handler) override {
    read_ = std::move(handler);
    read_buffer_ = buffer;
    const bool some_here = SSL_has_pending(ssl_.get()) == 1 || BIO_ctrl_pending(from_peer_) > 0;
    if (socket_error_ || (some_here && !ending_)) {
      asio::post(executor(), [self = shared_from_this()] { self->decrypt(); });
    } else {
      fetch();
    }
  }

  void async_write_some(const OutgoingBuffers& buffers, IoHandler handler) override {
    write_ = std::move(handler);
    written_ = 0;
    ERR_clear_error();
    if (!encrypt(buffers)) {
      asio::post(executor(), [self = shared_from_this()] { self->end_write(protocol_error()); });
      return;
    }
    flush();
  }

  void cancel_read() override {
    if (!read_) return;
    asio::post(executor(), [handler = std::move(read_)]() mutable {
      handler(asio::error::operation_aborted, 0);
    });
  }

  void end_sending() override {
    if (std::exchange(ending_, true)) return;
    say_goodbye();
    flush();
  }

  void close() override {
    if (!socket_.is_open()) return;
    // As far as the socket takes it at once: nobody waits for a connection that closes.
    if (!ending_ && !raw_writing_) {
      say_goodbye();
      take_output();
      ::send(socket_.native_handle(), out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    ErrorCode ignored;
    socket_.close(ignored);
  }

 private:
  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  /// OpenSSL calls it for every record and every message. In TLS 1.3 the header hides what the record is.
  static void on_message(int sent, int, int what, const void* data, size_t size, SSL*, void* self) {
    if (sent != 0 || size == 0) return;
    if (what != SSL3_RT_HEADER && what != SSL3_RT_INNER_CONTENT_TYPE) return;
    if (*static_cast<const unsigned char*>(data) == SSL3_RT_APPLICATION_DATA) return;
    TlsStream& stream = *static_cast<TlsStream*>(self);
    if (stream.ready_) ++stream.control_records_;
  }
  bool sends_too_little_data() const {
    return control_records_ > kFreeControlRecords + received_ / kBytesPerControlRecord;
  }

  void shake_hands() {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    const int problem = SSL_get_error(ssl_.get(), result);
    flush();
    if (result == 1) {
      ready_ = true;
      return std::exchange(handshake_, IoHandler())({}, 0);
    }
    if (problem == SSL_ERROR_WANT_READ) return fetch();
    asio::post(executor(),
               [handler = std::move(handshake_)]() mutable { handler(protocol_error(), 0); });
  }

  /// One record for buffers that fit into it, as a frame's header and its text do.
  bool encrypt(const OutgoingBuffers& buffers) {
    const asio::const_buffer* first = buffers.begin();
    if (buffers.count == 1) {
      written_ = std::min(first->size(), 4 * kRecordBytes);
      return write_record(first->data(), written_);
    }
    std::string together;
    for (const asio::const_buffer& buffer : buffers) {
      const size_t room = kRecordBytes - together.size();
      together.append(static_cast<const char*>(buffer.data()), std::min(buffer.size(), room));
    }
    written_ = together.size();
    return write_record(together.data(), written_);
  }

  bool write_record(const void* data, size_t size) {
    size_t taken = 0;
    return size > 0 && SSL_write_ex(ssl_.get(), data, size, &taken) == 1 && taken == size;
  }

  /// What is here to the owner's read; if that is nothing, more from the socket.
  void decrypt() {
    if (!read_) return;
    if (socket_error_) return end_read(socket_error_, 0);
    ERR_clear_error();
    size_t bytes = 0;
    const int result = SSL_read_ex(ssl_.get(), read_buffer_.data(), read_buffer_.size(), &bytes);
    const int problem = SSL_get_error(ssl_.get(), result);
    if (result == 1) received_ += static_cast<int64_t>(bytes);
    if (sends_too_little_data()) {
      socket_error_ = protocol_error();
      return end_read(socket_error_, 0);
    }
    flush();
    if (result == 1) return end_read({}, bytes);
    if (problem == SSL_ERROR_WANT_READ) return fetch();
    end_read(problem == SSL_ERROR_ZERO_RETURN ? asio::error::eof : protocol_error(), 0);
  }

  void fetch() {
    if (std::exchange(raw_reading_, true)) return;
    socket_.async_read_some(asio::buffer(in_),
                            [self = shared_from_this()](ErrorCode error, size_t bytes) {
                              self->raw_reading_ = false;
                              self->on_fetched(error, bytes);
                            });
  }

  void on_fetched(ErrorCode error, size_t bytes) {
    if (error) socket_error_ = error;
    if (handshake_) {
      if (error) return std::exchange(handshake_, IoHandler())(error, 0);
      BIO_write(from_peer_, in_.data(), static_cast<int>(bytes));
      return shake_hands();
    }
    // After the goodbye only the end of what comes matters.
    if (ending_ && !error) return end_read({}, std::min(bytes, read_buffer_.size()));
    if (!error) BIO_write(from_peer_, in_.data(), static_cast<int>(bytes));
    decrypt();
  }

  void say_goodbye() {
    ERR_clear_error();
    if (ready_) SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }

  void take_output() {
    out_.resize(BIO_ctrl_pending(to_peer_));
    if (!out_.empty()) BIO_read(to_peer_, out_.data(), static_cast<int>(out_.size()));
  }

  void flush() {
    if (raw_writing_) return;
    take_output();
    if (out_.empty()) {
      if (ending_) {
        ErrorCode ignored;
        socket_.shutdown(tcp::socket::shutdown_send, ignored);
      }
      return;
    }
    raw_writing_ = true;
    asio::async_write(socket_, asio::buffer(out_),
                      [self = shared_from_this()](ErrorCode error, size_t) {
                        self->raw_writing_ = false;
                        if (!error && BIO_ctrl_pending(self->to_peer_) > 0) return self->flush();
                        if (!error && self->ending_) self->flush();
                        self->end_write(error);
                      });
  }

  void end_read(ErrorCode error, size_t bytes) {
    if (read_) std::exchange(read_, IoHandler())(error, bytes);
  }
  void end_write(ErrorCode error) {
    if (write_) std::exchange(write_, IoHandler())(error, error ? 0 : written_);
  }

  tcp::socket socket_;
  std::shared_ptr<const TlsContext> context_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
  BIO* from_peer_;
  BIO* to_peer_;
  std::array<char, kRecordBytes> in_{};
  std::string out_;  // on its way to the socket
  IoHandler handshake_;
  IoHandler read_;
  asio::mutable_buffer read_buffer_;
  IoHandler write_;
  size_t written_ = 0;
  ErrorCode socket_error_;  // of reading; it stays
  int64_t received_ = 0;    // bytes of data
  int64_t control_records_ = 0;
  bool ready_ = false;  // the handshake is over
  bool raw_reading_ = false;
  bool raw_writing_ = false;
  bool ending_ = false;
};

}  // namespace

std::shared_ptr<ByteStream> make_tls_stream(tcp::socket socket,
                                            std::shared_ptr<const TlsContext> context) {
  return std::make_shared<TlsStream>(std::move(socket), std::move(context));
}

}  // namespace cedar::gateway
