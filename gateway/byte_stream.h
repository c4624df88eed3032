#pragma once
// The bytes of one connection, encrypted or not, behind one type: HTTP and WebSocket are compiled once, and what each
// kind of stream is made of stays in a file of its own.

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/role.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace cedar::gateway {

/// A move-only function of an operation's error and its count of bytes; called at most once.
class IoHandler {
 public:
  using ErrorCode = boost::system::error_code;

  IoHandler() = default;
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, IoHandler>>>
  explicit IoHandler(F&& function)
      : body_(std::make_unique<Body<std::decay_t<F>>>(std::forward<F>(function))) {}

  explicit operator bool() const { return body_ != nullptr; }
  void operator()(ErrorCode error, size_t bytes) {
    const auto body = std::move(body_);
    body->call(error, bytes);
  }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void call(ErrorCode error, size_t bytes) = 0;
  };
  template <class F>
  struct Body final : Base {
    explicit Body(F f) : function(std::move(f)) {}
    void call(ErrorCode error, size_t bytes) override { function(error, bytes); }
    F function;
  };
  std::unique_ptr<Base> body_;
};

/// The first few buffers of a sequence: a frame's header and its text leave together.
struct OutgoingBuffers {
  std::array<boost::asio::const_buffer, 4> buffers;
  size_t count = 0;

  const boost::asio::const_buffer* begin() const { return buffers.data(); }
  const boost::asio::const_buffer* end() const { return buffers.data() + count; }
};

/// At most one read and one write at a time. Handlers run on the executor, never inside the call that takes them; they
/// keep what their buffers belong to alive.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  virtual boost::asio::any_io_executor executor() = 0;
  /// What must happen before the first read or write; false: nothing.
  virtual bool has_handshake() const { return false; }
  virtual void async_handshake(IoHandler handler) = 0;
  virtual void async_read_some(boost::asio::mutable_buffer buffer, IoHandler handler) = 0;
  virtual void async_write_some(const OutgoingBuffers& buffers, IoHandler handler) = 0;
  /// The pending read ends with operation_aborted, and no byte is lost. REQUIRES: no write is pending.
  virtual void cancel_read() = 0;
  /// Nothing more is sent. What comes can still be read, but only its end means anything.
  virtual void end_sending() = 0;
  virtual void close() = 0;
  /// The TCP socket.
  virtual int native_handle() = 0;
};

/// `socket`'s executor is a strand of its own.
std::shared_ptr<ByteStream> make_plain_stream(boost::asio::ip::tcp::socket socket);

/// A ByteStream as the algorithms of Asio and Beast want their streams.
class AnyStream {
 public:
  using executor_type = boost::asio::any_io_executor;
  using ErrorCode = boost::system::error_code;

  explicit AnyStream(std::shared_ptr<ByteStream> bytes) : bytes_(std::move(bytes)) {}

  executor_type get_executor() { return bytes_->executor(); }
  ByteStream& bytes() { return *bytes_; }

  template <class Buffers, class Handler>
  auto async_read_some(const Buffers& buffers, Handler&& handler) {
    boost::asio::mutable_buffer first;
    for (auto it = boost::asio::buffer_sequence_begin(buffers);
         it != boost::asio::buffer_sequence_end(buffers) && first.size() == 0; ++it) {
      first = *it;
    }
    return boost::asio::async_initiate<Handler, void(ErrorCode, size_t)>(
        [](auto&& h, ByteStream* stream, boost::asio::mutable_buffer buffer) {
          stream->async_read_some(buffer, IoHandler(std::forward<decltype(h)>(h)));
        },
        handler, bytes_.get(), first);
  }

  template <class Buffers, class Handler>
  auto async_write_some(const Buffers& buffers, Handler&& handler) {
    OutgoingBuffers some;
    for (auto it = boost::asio::buffer_sequence_begin(buffers);
         it != boost::asio::buffer_sequence_end(buffers) && some.count < some.buffers.size();
         ++it) {
      const boost::asio::const_buffer buffer = *it;
      if (buffer.size() > 0) some.buffers[some.count++] = buffer;
    }
    return boost::asio::async_initiate<Handler, void(ErrorCode, size_t)>(
        [](auto&& h, ByteStream* stream, const OutgoingBuffers& out) {
          stream->async_write_some(out, IoHandler(std::forward<decltype(h)>(h)));
        },
        handler, bytes_.get(), some);
  }

 private:
  std::shared_ptr<ByteStream> bytes_;
};

// Beast finds these by the argument's namespace when it ends a WebSocket.

inline void beast_close_socket(AnyStream& stream) { stream.bytes().close(); }

/// Reads until the peer closes, which `handler` is told of.
template <class Handler>
void drain(ByteStream& stream, Handler handler) {
  const auto unwanted = std::make_shared<std::array<char, 2048>>();
  stream.async_read_some(
      boost::asio::buffer(*unwanted),
      IoHandler([&stream, unwanted, handler = std::move(handler)](boost::system::error_code error,
                                                                  size_t) mutable {
        if (!error) return drain(stream, std::move(handler));
        handler(error == boost::asio::error::eof ? boost::system::error_code() : error);
      }));
}

template <class Handler>
void async_teardown(boost::beast::role_type, AnyStream& stream, Handler&& handler) {
  stream.bytes().end_sending();
  drain(stream.bytes(), std::forward<Handler>(handler));
}

}  // namespace cedar::gateway
