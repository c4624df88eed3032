#pragma once
// The UCX back end: TCP, shared memory, RDMA. The one header of it that other rooms see; no UCX type shows.

#include <memory>

#include "transport/link.h"
#include "transport/transport.h"

namespace cedar::transport {

struct UcxOptions {
  std::string tls;          // as UCX_TLS: "tcp", "posix,sysv,tcp"; empty: all that UCX finds
  std::string net_devices;  // as UCX_NET_DEVICES: "eth0", "lo"; empty: all
  // Bulk messages up to this size go with one copy at the receiver and without a handshake.
  uint64_t eager_bytes = 128u << 10;
};

/// Sets what UCX 1.13 reads from the environment only and Cedar depends on, each only if the operator has not set it:
/// shared memory with error handling (otherwise local traffic goes over TCP), addresses that can be bound again after a
/// kill. make_ucx_link calls it. A program with other threads that read the environment calls it first, at its start.
void prepare_ucx_environment();

/// Errors: io_error (UCX cannot start).
Result<std::unique_ptr<Link>> make_ucx_link(const UcxOptions& options);

/// Errors: as make_ucx_link and make_transport.
Result<std::unique_ptr<Transport>> make_ucx_transport(const TransportOptions& options,
                                                      const UcxOptions& ucx = {});

}  // namespace cedar::transport
