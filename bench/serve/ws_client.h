#pragma once
// Thousands of WebSocket connections on one thread, so that the client takes little of the machine it measures.
// No library of the gateway in it.

#include <netdb.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace cedar::bench {

struct WsEndpoint {
  sockaddr_storage address{};
  socklen_t address_bytes = 0;
  std::string authority;
  std::string path;
  std::string headers;  // further ones of the upgrade, each with its line end
};

/// Errors: unavailable (the name is not known).
Result<WsEndpoint> resolve_endpoint(const std::string& host, const std::string& port,
                                    std::string authority, std::string path);

/// Raises the limit of open files of this process. Errors: unavailable naming both numbers.
Status raise_file_limit(int64_t descriptors);

/// Calls come on the thread that calls poll().
class WsHandler {
 public:
  virtual ~WsHandler() = default;
  virtual void on_open(size_t connection) = 0;
  /// `received_ns`: monotonic, when the bytes were taken from the socket.
  virtual void on_text(size_t connection, std::string_view text, int64_t received_ns) = 0;
  /// Exactly once for every connection that close() did not end.
  virtual void on_closed(size_t connection, const std::string& why) = 0;
};

class WsClient {
 public:
  /// Errors: io_error.
  static Result<std::unique_ptr<WsClient>> create(WsEndpoint endpoint, WsHandler& handler);
  ~WsClient();
  WsClient(const WsClient&) = delete;
  WsClient& operator=(const WsClient&) = delete;

  /// Begins a connection and returns its number: 0, 1, 2, ... `receive_buffer_bytes`: 0 leaves it to the system.
  Result<size_t> connect(int receive_buffer_bytes = 0);
  void send(size_t connection, std::string_view text);
  /// Off: what the server sends stays in the socket.
  void set_reading(size_t connection, bool on);
  void close(size_t connection);
  /// Waits up to `timeout_ms` for something to happen and handles it.
  void poll(int timeout_ms);

 private:
  enum class State : uint8_t { connecting, upgrading, open, closed };
  struct Connection {
    int fd = -1;
    State state = State::connecting;
    bool reading = true;
    uint32_t watched = 0;
    std::string in;   // bytes of an incomplete frame
    std::string out;  // what the socket has not taken
  };

  WsClient(WsEndpoint endpoint, WsHandler& handler, int epoll);
  void on_ready(size_t number, uint32_t events);
  void read(size_t number);
  /// Handles whole frames; returns how many bytes they took.
  size_t take(size_t number, std::string_view bytes, int64_t now);
  size_t take_head(size_t number, std::string_view bytes);
  void on_frame(size_t number, int opcode, std::string_view payload, int64_t now);
  void send_frame(Connection& connection, int opcode, std::string_view payload);
  void write(Connection& connection, std::string_view bytes);
  void flush(Connection& connection);
  void watch(Connection& connection);
  void end(size_t number, const std::string& why);

  WsEndpoint endpoint_;
  WsHandler& handler_;
  int epoll_;
  std::mt19937 random_{1};  // masks; nothing between us and the server is to be protected from them
  std::vector<Connection> connections_;
  std::vector<char> scratch_;
};

}  // namespace cedar::bench
