#pragma once
// Where host memory comes from, for callers that need it in a place of their own: an encoder's KV pages, which other
// processes read.

#include <cstdint>

#include "core/buffer.h"

namespace cedar {

class HostMemorySource {
 public:
  virtual ~HostMemorySource() = default;
  /// Zeroed, at least 64-byte aligned. Errors: out_of_memory and the source's own.
  virtual Result<Buffer> allocate(int64_t bytes) = 0;
};

}  // namespace cedar
