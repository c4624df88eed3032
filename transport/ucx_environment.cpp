#include <cstdlib>
#include <mutex>

#include "transport/ucx.h"

namespace cedar::transport {

void prepare_ucx_environment() {
  static std::once_flag once;
  std::call_once(once, [] {
    // In error mode PEER, which everything here relies on, UCX uses shared memory only with these.
    ::setenv("UCX_POSIX_ERROR_HANDLING", "y", 0);
    ::setenv("UCX_SYSV_ERROR_HANDLING", "y", 0);
    // Without this a restart within a minute of a kill fails with "Device is busy". (RDMA's connection manager has a
    // variable of its own, but UcxContext prefers TCP's everywhere.)
    ::setenv("UCX_TCP_CM_REUSEADDR", "y", 0);
  });
}

}  // namespace cedar::transport
