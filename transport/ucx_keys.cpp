#include "transport/ucx_keys.h"

#include "core/crc32c.h"
#include "transport/wire.h"

namespace cedar::transport {
namespace {

constexpr size_t kMaxKeys = 4096;  // per connection; a node registers a handful of regions

}  // namespace

std::vector<std::byte> pack_ucx_key(uint64_t base, uint64_t bytes,
                                    std::span<const std::byte> rkey) {
  const auto body = ByteWriter().put(base).put(bytes).put_bytes(rkey).take();
  return ByteWriter().put(crc32c(body)).put_bytes(body).take();
}

UcxKeys::~UcxKeys() {
  for (auto& [packed, key] : keys_) {
    if (key.rkey != nullptr) ucp_rkey_destroy(key.rkey);
  }
}

const UcxKeys::Key* UcxKeys::find(ucp_ep_h endpoint, std::span<const std::byte> packed) {
  const std::string name(reinterpret_cast<const char*>(packed.data()), packed.size());
  if (const auto at = keys_.find(name); at != keys_.end()) return &at->second;
  ByteReader in(packed);
  const auto checksum = in.get<uint32_t>();
  // UCX trusts a packed rkey blindly: bytes damaged on their way must not reach it.
  if (in.failed() || checksum != crc32c(in.rest()) || keys_.size() >= kMaxKeys) return nullptr;
  Key key;
  key.base = in.get<uint64_t>();
  key.bytes = in.get<uint64_t>();
  if (in.failed() || in.rest().empty()) return nullptr;
  if (ucp_ep_rkey_unpack(endpoint, in.rest().data(), &key.rkey) != UCS_OK) return nullptr;
  void* local = nullptr;
  if (ucp_rkey_ptr(key.rkey, key.base, &local) == UCS_OK)
    key.local = static_cast<const std::byte*>(local);
  return &keys_.emplace(name, key).first->second;
}

}  // namespace cedar::transport
