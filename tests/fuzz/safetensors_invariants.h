#pragma once
// What must hold for any bytes given to the safetensors reader. Shared by the property test and the
// fuzz target.

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/check.h"
#include "model/safetensors.h"

namespace cedar::test {

/// Stops the process unless the bytes are refused with a reason, or every tensor lies where it may
/// be read and has the size that its type and shape say. Returns whether they were accepted.
inline bool check_safetensors(std::span<const std::byte> bytes) {
  const auto parsed = model::SafetensorsFile::parse(bytes, "input");
  if (!parsed) {
    CEDAR_ASSERT(parsed.error().code == Errc::invalid_checkpoint, parsed.error().message());
    CEDAR_ASSERT(parsed.error().context.size() > 7, "a refusal without a reason");
    return false;
  }
  volatile unsigned char last =
      0;  // a read that the compiler keeps, for a sanitizer to see a bad range
  size_t covered = 8;
  for (const auto& [name, view] : (*parsed)->tensors()) {
    CEDAR_ASSERT((*parsed)->find(name) == &view, name);
    CEDAR_ASSERT(view.data != nullptr, name);
    CEDAR_ASSERT(view.bytes() >= 0, name);
    CEDAR_ASSERT(
        reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(dtype_bytes(view.dtype)) ==
            0,
        name);
    const auto* data = static_cast<const unsigned char*>(view.data);
    for (int64_t i = 0; i < view.bytes(); ++i) last = data[i];
    covered += static_cast<size_t>(view.bytes());
  }
  static_cast<void>(last);
  CEDAR_ASSERT(covered <= bytes.size(), "tensors hold more bytes than the file");
  return true;
}

}  // namespace cedar::test
