#include "bench/serve/ws_client.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "bench/serve/stamps.h"

namespace cedar::bench {
namespace {

constexpr size_t kReadBytes = 65536;
constexpr size_t kMaxFrameBytes = size_t{16} << 20;
constexpr int kEvents = 256;

std::string errno_text(int number) { return std::strerror(number); }

}  // namespace

Result<WsEndpoint> resolve_endpoint(const std::string& host, const std::string& port,
                                    std::string authority, std::string path) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return make_error(Errc::unavailable, host + ": " + ::gai_strerror(error));
  }
  WsEndpoint endpoint;
  std::memcpy(&endpoint.address, found->ai_addr, found->ai_addrlen);
  endpoint.address_bytes = found->ai_addrlen;
  ::freeaddrinfo(found);
  endpoint.authority = std::move(authority);
  endpoint.path = std::move(path);
  return endpoint;
}

Status raise_file_limit(int64_t descriptors) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return make_error(Errc::io_error, "getrlimit: " + errno_text(errno));
  const auto wanted = static_cast<rlim_t>(descriptors);
  if (limit.rlim_cur >= wanted) return {};
  limit.rlim_cur = wanted;
  if (wanted > limit.rlim_max || ::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return make_error(Errc::unavailable,
                      std::to_string(descriptors) + " open files are needed, the limit is " +
                          std::to_string(limit.rlim_max) +
                          "; raise it (ulimit -Hn) or ask for fewer connections");
  }
  return {};
}

Result<std::unique_ptr<WsClient>> WsClient::create(WsEndpoint endpoint, WsHandler& handler) {
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) return make_error(Errc::io_error, "epoll: " + errno_text(errno));
  return std::unique_ptr<WsClient>(new WsClient(std::move(endpoint), handler, epoll));
}

WsClient::WsClient(WsEndpoint endpoint, WsHandler& handler, int epoll)
    : endpoint_(std::move(endpoint)), handler_(handler), epoll_(epoll), scratch_(kReadBytes) {}

WsClient::~WsClient() {
  for (const Connection& connection : connections_) {
    if (connection.fd >= 0) ::close(connection.fd);
  }
  ::close(epoll_);
}

Result<size_t> WsClient::connect(int receive_buffer_bytes) {
  Connection connection;
  connection.fd =
      ::socket(endpoint_.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (connection.fd < 0) return make_error(Errc::io_error, "socket: " + errno_text(errno));
  const int one = 1;
  ::setsockopt(connection.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (receive_buffer_bytes > 0) {
    ::setsockopt(connection.fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
                 sizeof receive_buffer_bytes);
  }
  const auto* address = reinterpret_cast<const sockaddr*>(&endpoint_.address);
  if (::connect(connection.fd, address, endpoint_.address_bytes) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    ::close(connection.fd);
    return make_error(Errc::unavailable,
                      "cannot connect to " + endpoint_.authority + ": " + errno_text(error));
  }
  const size_t number = connections_.size();
  connection.watched = EPOLLOUT;
  epoll_event event{};
  event.events = connection.watched;
  event.data.u64 = number;
  ::epoll_ctl(epoll_, EPOLL_CTL_ADD, connection.fd, &event);
  connections_.push_back(std::move(connection));
  return number;
}

void WsClient::poll(int timeout_ms) {
  epoll_event events[kEvents];
  const int count = ::epoll_wait(epoll_, events, kEvents, timeout_ms);
  for (int i = 0; i < count; ++i) on_ready(events[i].data.u64, events[i].events);
}

void WsClient::on_ready(size_t number, uint32_t events) {
  Connection& connection = connections_[number];
  if (connection.state == State::closed) return;
  if (connection.state == State::connecting) {
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(connection.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0)
      return end(number, "cannot connect to " + endpoint_.authority + ": " + errno_text(error));
    connection.state = State::upgrading;
    return write(connection,
                 "GET " + endpoint_.path + " HTTP/1.1\r\nHost: " + endpoint_.authority +
                     "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                     "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: cedar.v1\r\n" +
                     endpoint_.headers + "\r\n");
  }
  if ((events & EPOLLOUT) != 0) flush(connection);
  if (connection.reading && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) return read(number);
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) end(number, "connection reset");
}

void WsClient::read(size_t number) {
  const ssize_t count = ::recv(connections_[number].fd, scratch_.data(), scratch_.size(), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return end(number, count == 0 ? "the server closed" : errno_text(errno));
  const int64_t now = monotonic_ns();
  std::string& in = connections_[number].in;
  const std::string_view bytes(scratch_.data(), static_cast<size_t>(count));
  if (in.empty()) {
    const size_t taken = take(number, bytes, now);
    connections_[number].in.assign(bytes.substr(taken));
    return;
  }
  in.append(bytes);
  // A handler may connect further ones, which moves the connections; the text itself must stay where it is.
  const std::string whole = std::exchange(in, {});
  const size_t taken = take(number, whole, now);
  connections_[number].in.assign(whole, taken);
}

size_t WsClient::take(size_t number, std::string_view bytes, int64_t now) {
  size_t at = 0;
  if (connections_[number].state == State::upgrading) {
    at = take_head(number, bytes);
    if (at == 0) return 0;
  }
  while (connections_[number].state == State::open && bytes.size() - at >= 2) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[at + i]); };
    size_t head = 2;
    uint64_t size = byte(1) & 0x7FU;
    if (size >= 126) {
      head = size == 126 ? 4 : 10;
      if (bytes.size() - at < head) return at;
      size = 0;
      for (size_t i = 2; i < head; ++i) size = size << 8U | byte(i);
    }
    if (size > kMaxFrameBytes || (byte(0) & 0x80U) == 0 || (byte(1) & 0x80U) != 0) {
      end(number, "the server breaks the protocol: a frame that is masked, in parts or too long");
      return bytes.size();
    }
    if (bytes.size() - at - head < size) return at;
    on_frame(number, byte(0) & 0x0F, bytes.substr(at + head, size), now);
    at += head + size;
  }
  return connections_[number].state == State::closed ? bytes.size() : at;
}

size_t WsClient::take_head(size_t number, std::string_view bytes) {
  const size_t end_of_head = bytes.find("\r\n\r\n");
  if (end_of_head == std::string_view::npos) return 0;
  if (bytes.substr(0, 12) != "HTTP/1.1 101") {
    end(number,
        "the server refuses the WebSocket: " + std::string(bytes.substr(0, bytes.find("\r\n"))));
    return bytes.size();
  }
  connections_[number].state = State::open;
  handler_.on_open(number);
  return end_of_head + 4;
}

void WsClient::on_frame(size_t number, int opcode, std::string_view payload, int64_t now) {
  if (opcode == 1) return handler_.on_text(number, payload, now);
  if (opcode == 9) return send_frame(connections_[number], 10, payload);
  if (opcode != 8) return;
  std::string why = "closed by the server";
  if (payload.size() >= 2) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(payload[i]); };
    why +=
        " with " + std::to_string(byte(0) * 256 + byte(1)) + ' ' + std::string(payload.substr(2));
  }
  end(number, why);
}

void WsClient::send(size_t connection, std::string_view text) {
  send_frame(connections_[connection], 1, text);
}

void WsClient::send_frame(Connection& connection, int opcode, std::string_view payload) {
  if (connection.state != State::open) return;
  const size_t size = payload.size();
  std::string frame(1, static_cast<char>(0x80 | opcode));
  const int length_bytes = size < 126 ? 0 : size < 65536 ? 2 : 8;
  frame += static_cast<char>(0x80 | (length_bytes == 0 ? size : length_bytes == 2 ? 126 : 127));
  for (int shift = 8 * (length_bytes - 1); shift >= 0; shift -= 8)
    frame += static_cast<char>(size >> static_cast<unsigned>(shift));
  const uint32_t mask = random_();
  char key[4];
  std::memcpy(key, &mask, sizeof key);
  frame.append(key, sizeof key);
  for (size_t i = 0; i < size; ++i) frame += static_cast<char>(payload[i] ^ key[i % 4]);
  write(connection, frame);
}

void WsClient::write(Connection& connection, std::string_view bytes) {
  connection.out.append(bytes);
  flush(connection);
}

void WsClient::flush(Connection& connection) {
  while (!connection.out.empty()) {
    const ssize_t sent =
        ::send(connection.fd, connection.out.data(), connection.out.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;  // full, or broken, which the next event tells
    connection.out.erase(0, static_cast<size_t>(sent));
  }
  watch(connection);
}

void WsClient::set_reading(size_t connection, bool on) {
  connections_[connection].reading = on;
  watch(connections_[connection]);
}

void WsClient::watch(Connection& connection) {
  if (connection.fd < 0 || connection.state == State::connecting) return;
  const uint32_t wanted =
      (connection.reading ? EPOLLIN : 0U) | (connection.out.empty() ? 0U : EPOLLOUT);
  if (wanted == connection.watched) return;
  connection.watched = wanted;
  epoll_event event{};
  event.events = wanted;
  event.data.u64 = static_cast<uint64_t>(&connection - connections_.data());
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, connection.fd, &event);
}

void WsClient::close(size_t connection) {
  Connection& c = connections_[connection];
  c.state = State::closed;
  if (c.fd >= 0) ::close(std::exchange(c.fd, -1));
}

void WsClient::end(size_t number, const std::string& why) {
  if (connections_[number].state == State::closed) return;
  close(number);
  handler_.on_closed(number, why);
}

}  // namespace cedar::bench
