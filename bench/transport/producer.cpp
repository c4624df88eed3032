#include "bench/transport/producer.h"

#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/ucx.h"

namespace cedar::bench {
namespace {

using namespace transport;

bool write_all(int fd, const void* data, size_t bytes) {
  return ::write(fd, data, bytes) == static_cast<ssize_t>(bytes);
}
bool read_all(int fd, void* data, size_t bytes) {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const auto got = ::read(fd, to, bytes);
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

/// Waits for a byte, serves until the pipe ends.
int serve(const LinkKind& kind, uint64_t bytes, uint32_t spin_rounds, int in, int out) {
  char byte = 0;
  if (!read_all(in, &byte, 1)) return 0;
  TransportOptions options;
  options.identity = {NodeId(1), 1};
  options.spin_rounds = spin_rounds;
  auto transport = make_ucx_transport(options, UcxOptions{kind.tls, kind.devices});
  if (!transport) {
    std::fprintf(stderr, "producer: %s\n", transport.error().message().c_str());
    return 1;
  }
  const auto region = (*transport)->allocate(bytes);
  if (!region) return 1;
  std::memset(region->memory.data, 0x5A, bytes);
  OfferRequest request;
  request.region = region->id;
  request.ranges = {{0, bytes, {}}};
  const auto descriptor = (*transport)->offer(request);
  if (!descriptor) return 1;
  const auto packed = serialise(*descriptor);
  const uint16_t port = (*transport)->listen_port();
  const auto size = static_cast<uint32_t>(packed.size());
  if (!write_all(out, &port, sizeof port) || !write_all(out, &size, sizeof size) ||
      !write_all(out, packed.data(), packed.size()))
    return 1;
  read_all(in, &byte, 1);
  return 0;
}

}  // namespace

Result<std::unique_ptr<Producer>> Producer::fork(const LinkKind& kind, uint64_t bytes,
                                                 uint32_t spin_rounds) {
  std::unique_ptr<Producer> self(new Producer);
  int down[2], up[2];
  if (::pipe2(down, O_CLOEXEC) != 0 || ::pipe2(up, O_CLOEXEC) != 0)
    return make_error(Errc::io_error, "pipe");
  self->pid_ = ::fork();
  if (self->pid_ < 0) return make_error(Errc::io_error, "fork");
  if (self->pid_ == 0) {
    ::close(down[1]);
    ::close(up[0]);
    ::_exit(serve(kind, bytes, spin_rounds, down[0], up[1]));
  }
  ::close(down[0]);
  ::close(up[1]);
  self->to_ = down[1];
  self->from_ = up[0];
  return self;
}

Status Producer::start() {
  const char go = 'g';
  uint32_t size = 0;
  std::vector<std::byte> packed;
  bool good = write_all(to_, &go, 1) && read_all(from_, &port_, sizeof port_) &&
              read_all(from_, &size, sizeof size) && size < 1u << 20;
  if (good) {
    packed.resize(size);
    good = read_all(from_, packed.data(), size);
  }
  if (!good) return make_error(Errc::io_error, "the producer's process has ended");
  CEDAR_TRY(memory_, parse_descriptor(packed));
  return {};
}

Producer::~Producer() {
  if (to_ >= 0) ::close(to_);
  if (from_ >= 0) ::close(from_);
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace cedar::bench
