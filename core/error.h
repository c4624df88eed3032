#pragma once
// The one vocabulary of failures. Values are stable: they cross process boundaries.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace cedar {

enum class Errc : uint8_t {
  ok = 0,
  invalid_argument = 1,    // a caller's value is wrong; the context names the field and the value
  invalid_config = 2,      // config.json or a TOML file contradicts itself or lacks a key
  invalid_checkpoint = 3,  // a tensor is missing, left over, truncated or of the wrong type
  not_found = 4,
  io_error = 5,
  out_of_memory = 6,
  overloaded = 7,        // no room now; a retry later can succeed
  context_too_long = 8,  // prompt + max_tokens cannot fit the model's context or the KV pool
  deadline_exceeded = 9,
  cancelled = 10,
  unavailable = 11,       // a peer or stage is missing
  stale_generation = 12,  // the sender belongs to an earlier life of its node
  checksum_mismatch = 13,
  unsupported = 14,
  internal = 15,
};

std::string_view to_string(Errc code);

/// True when the same request can succeed later without being changed.
bool retryable(Errc code);

struct Error {
  Errc code = Errc::internal;
  std::string
      context;  // what and which: "layers.14.attn.wkv.weight: expected [512, 5120], got [512, 448]"

  /// "invalid_argument: temperature must be in [0, 2], got 7"
  std::string message() const;
};

}  // namespace cedar
