#pragma once
// The Transport over any Link.

#include <memory>

#include "transport/link.h"
#include "transport/transport.h"

namespace cedar::transport {

/// Starts the link's listener and its progress thread. Errors: invalid_argument (options), io_error, unavailable (address).
Result<std::unique_ptr<Transport>> make_transport(const TransportOptions& options,
                                                  std::unique_ptr<Link> link);

}  // namespace cedar::transport
