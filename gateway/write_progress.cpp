#include "gateway/write_progress.h"

// This one, not netinet/tcp.h: the C library's tcp_info ends before the counters.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace cedar::gateway {

uint64_t acknowledged_bytes(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return info.tcpi_bytes_acked;
}

}  // namespace cedar::gateway
