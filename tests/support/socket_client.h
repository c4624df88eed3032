#pragma once
// A client made of plain sockets: tests see the bytes, and can misbehave. No library of the gateway in it.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cedar::test {

class Socket {
 public:
  explicit Socket(uint16_t port, int receive_buffer_bytes = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
    }
    const int one = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Socket() { close(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  /// Nothing more is sent; what the server sends can still be read.
  void end_sending() { ::shutdown(fd_, SHUT_WR); }
  /// Ends the connection with a reset, as a crashed peer's kernel does.
  void reset() {
    const linger abort{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &abort, sizeof abort);
    close();
  }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  /// False at the end of the stream or when nothing came within `limit`; timed_out() tells which.
  bool read_more(std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    pollfd wait{fd_, POLLIN, 0};
    timed_out_ = ::poll(&wait, 1, static_cast<int>(limit.count())) == 0;
    if (timed_out_) return false;
    char bytes[65536];
    const ssize_t count = ::recv(fd_, bytes, sizeof bytes, 0);
    if (count <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(count));
    return true;
  }
  bool timed_out() const { return timed_out_; }
  /// Whether the server closes within `limit`; what it sends until then is dropped.
  bool closed_by_peer(std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < deadline) {
      if (!read_more(std::chrono::milliseconds(20)) && !timed_out_) return true;
      buffer_.clear();
    }
    return false;
  }

  /// Removes and returns `count` bytes, waiting for them; nothing when they do not come.
  std::optional<std::string> take(size_t count) {
    while (buffer_.size() < count) {
      if (!read_more()) return std::nullopt;
    }
    std::string bytes = buffer_.substr(0, count);
    buffer_.erase(0, count);
    return bytes;
  }
  /// Up to and including `mark`.
  std::optional<std::string> take_until(
      std::string_view mark, std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    size_t at = 0;
    while ((at = buffer_.find(mark)) == std::string::npos) {
      if (!read_more(limit)) return std::nullopt;
    }
    return take(at + mark.size());
  }
  std::string take_rest() {
    while (read_more()) {
    }
    return std::exchange(buffer_, {});
  }

 private:
  int fd_ = -1;
  bool connected_ = false;
  bool timed_out_ = false;
  std::string buffer_;
};

struct Reply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  std::vector<std::string> chunks;
};

inline std::optional<Reply> read_head(Socket& socket) {
  const auto head = socket.take_until("\r\n\r\n");
  if (!head) return std::nullopt;
  Reply reply;
  reply.status = std::atoi(head->c_str() + head->find(' '));
  size_t line = head->find("\r\n") + 2;
  while (line + 2 < head->size()) {
    const size_t end = head->find("\r\n", line);
    const size_t colon = head->find(": ", line);
    std::string name = head->substr(line, colon - line);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    reply.headers[name] = head->substr(colon + 2, end - colon - 2);
    line = end + 2;
  }
  return reply;
}

inline std::optional<std::string> read_chunk(Socket& socket) {
  const auto size = socket.take_until("\r\n");
  if (!size) return std::nullopt;
  const auto chunk = socket.take(std::stoul(*size, nullptr, 16) + 2);
  if (!chunk) return std::nullopt;
  return chunk->substr(0, chunk->size() - 2);
}

inline std::optional<Reply> read_reply(Socket& socket) {
  auto reply = read_head(socket);
  if (!reply) return std::nullopt;
  if (reply->headers.count("transfer-encoding") != 0) {
    while (true) {
      auto chunk = read_chunk(socket);
      if (!chunk) return std::nullopt;
      if (chunk->empty()) return reply;
      reply->body += *chunk;
      reply->chunks.push_back(std::move(*chunk));
    }
  }
  const auto length = reply->headers.find("content-length");
  if (length == reply->headers.end()) {
    reply->body = socket.take_rest();
    return reply;
  }
  const auto body = socket.take(std::stoul(length->second));
  if (!body) return std::nullopt;
  reply->body = *body;
  return reply;
}

inline std::string post_text(std::string_view path, std::string_view body,
                             std::string_view headers = {}) {
  std::string text = "POST ";
  text.append(path)
      .append(" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
      .append(headers);
  text.append("Content-Length: ")
      .append(std::to_string(body.size()))
      .append("\r\n\r\n")
      .append(body);
  return text;
}

inline std::string get_text(std::string_view path) {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
}

inline std::optional<Reply> post(uint16_t port, std::string_view path, std::string_view body) {
  Socket socket(port);
  socket.send(post_text(path, body));
  return read_reply(socket);
}

inline std::optional<Reply> get(uint16_t port, std::string_view path) {
  Socket socket(port);
  socket.send(get_text(path));
  return read_reply(socket);
}

/// The data of the server-sent events in `body`.
inline std::vector<std::string> sse_data(const std::string& body) {
  std::vector<std::string> events;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos) break;
    const std::string event = body.substr(at, end - at);
    if (event.rfind("data: ", 0) == 0) events.push_back(event.substr(6));
    at = end + 2;
  }
  return events;
}

/// The client's side of a WebSocket.
class WebSocket {
 public:
  explicit WebSocket(uint16_t port, std::string_view protocol = "cedar.v1",
                     std::string_view headers = {}, int receive_buffer_bytes = 0)
      : WebSocket(port, receive_buffer_bytes, upgrade_text(protocol, headers)) {}
  /// `opening`: all that is sent before the server's head is read, with the upgrade in it.
  WebSocket(uint16_t port, int receive_buffer_bytes, std::string_view opening)
      : socket_(port, receive_buffer_bytes) {
    socket_.send(opening);
    if (auto reply = read_head(socket_)) head_ = *reply;
  }

  static std::string upgrade_text(std::string_view protocol = "cedar.v1",
                                  std::string_view headers = {}) {
    std::string request =
        "GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: "
        "Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";
    if (!protocol.empty())
      request.append("Sec-WebSocket-Protocol: ").append(protocol).append("\r\n");
    return request.append(headers).append("\r\n");
  }
  static std::string frame_text(int opcode, std::string_view payload) {
    std::string frame(1, static_cast<char>(0x80 | opcode));
    const size_t size = payload.size();
    if (size < 126) {
      frame += static_cast<char>(0x80 | size);
    } else if (size < 65536) {
      frame += static_cast<char>(0x80 | 126);
      frame += static_cast<char>(size >> 8);
      frame += static_cast<char>(size);
    } else {
      frame += static_cast<char>(0x80 | 127);
      for (int shift = 56; shift >= 0; shift -= 8) frame += static_cast<char>(size >> shift);
    }
    const char mask[4] = {1, 2, 3, 4};
    frame.append(mask, 4);
    for (size_t i = 0; i < size; ++i) frame += static_cast<char>(payload[i] ^ mask[i % 4]);
    return frame;
  }

  const Reply& head() const { return head_; }
  Socket& socket() { return socket_; }
  uint16_t close_code() const { return close_code_; }

  bool send(std::string_view text) { return send_frame(1, text); }
  bool send_frame(int opcode, std::string_view payload) {
    return socket_.send(frame_text(opcode, payload));
  }
  void send_close(uint16_t code = 1000) {
    const char payload[2] = {static_cast<char>(code >> 8), static_cast<char>(code)};
    send_frame(8, std::string_view(payload, 2));
  }

  /// Reads the head of a further answer, when the one to the upgrade was not the first.
  void read_next_head() {
    if (auto reply = read_head(socket_)) head_ = *reply;
  }

  /// The next text frame; pings are answered unless `answer_pings` is off. Nothing once the server closes.
  std::optional<std::string> read() {
    while (true) {
      const auto head = socket_.take(2);
      if (!head) return std::nullopt;
      size_t size = static_cast<unsigned char>((*head)[1]) & 0x7F;
      if (size >= 126) {
        const auto bytes = socket_.take(size == 126 ? 2 : 8);
        if (!bytes) return std::nullopt;
        size = 0;
        for (char byte : *bytes) size = size << 8 | static_cast<unsigned char>(byte);
      }
      auto payload = socket_.take(size);
      if (!payload) return std::nullopt;
      const int opcode = (*head)[0] & 0x0F;
      if (opcode == 1) return payload;
      if (opcode == 9 && answer_pings) send_frame(10, *payload);
      if (opcode == 9) ++pings;
      if (opcode == 8) {
        if (payload->size() >= 2) {
          close_code_ = static_cast<uint16_t>(static_cast<unsigned char>((*payload)[0]) << 8 |
                                              static_cast<unsigned char>((*payload)[1]));
        }
        send_frame(8, *payload);
        return std::nullopt;
      }
    }
  }

  bool answer_pings = true;
  int pings = 0;

 private:
  Socket socket_;
  Reply head_;
  uint16_t close_code_ = 0;
};

}  // namespace cedar::test
