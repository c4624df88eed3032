#pragma once
// Region keys of the UCX back end: checksum, base address, size, UCX's packed rkey. Unpacked once per connection.

#include <map>
#include <span>
#include <string>
#include <vector>

#include <ucp/api/ucp.h>

#include "transport/types.h"

namespace cedar::transport {

std::vector<std::byte> pack_ucx_key(uint64_t base, uint64_t bytes, std::span<const std::byte> rkey);

class UcxKeys {
 public:
  struct Key {
    uint64_t base = 0;
    uint64_t bytes = 0;
    ucp_rkey_h rkey = nullptr;
    const std::byte* local =
        nullptr;  // the owner's memory as mapped here, when it is shared memory
  };

  UcxKeys() = default;
  ~UcxKeys();
  UcxKeys(const UcxKeys&) = delete;
  UcxKeys& operator=(const UcxKeys&) = delete;

  /// Null when the bytes are no key for this endpoint. The key lives as long as this object.
  const Key* find(ucp_ep_h endpoint, std::span<const std::byte> packed);

 private:
  std::map<std::string, Key> keys_;
};

}  // namespace cedar::transport
