#pragma once
// Transports of one process: the same protocol, windows, leases and failures, without a wire. A consumer that can work on the
// producer's memory uses Transport::view; a pull is one copy.

#include <memory>

#include "transport/link.h"
#include "transport/transport.h"

namespace cedar::transport {

/// The "network" that links of one process share. Threads: any.
class LoopbackHub;
std::shared_ptr<LoopbackHub> make_loopback_hub();

/// `native_get`: pulls read the producer's memory; otherwise they ask for bulk messages, as over TCP. The port of its
/// address is all that counts.
std::unique_ptr<Link> make_loopback_link(std::shared_ptr<LoopbackHub> hub, bool native_get = true);

/// Errors: invalid_argument (options), unavailable (port taken).
Result<std::unique_ptr<Transport>> make_loopback_transport(const TransportOptions& options,
                                                           std::shared_ptr<LoopbackHub> hub);

}  // namespace cedar::transport
