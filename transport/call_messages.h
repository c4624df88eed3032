#pragma once
// One message of a call: a header and a piece of the body. docs/transport.md shows the bytes.

#include <span>
#include <vector>

#include "transport/types.h"

namespace cedar::transport {

/// Of Transport::send.
constexpr uint16_t kCallMessageKind = 1;

struct CallMessage {
  enum class Type : uint8_t { request = 1, reply = 2 };
  static constexpr size_t kHeaderBytes = 1 + 8 + 2 + 4 + 4 + 4;

  Type type = Type::request;
  uint64_t id = 0;            // of the caller
  uint16_t subject = 0;       // method of a request; Errc of a reply, whose body then is a text
  uint32_t remaining_ms = 0;  // until the caller's deadline, in a request
  uint32_t total_bytes = 0;   // of the whole body
  uint32_t offset = 0;        // of this piece
  std::span<const std::byte> piece;
};

std::vector<std::byte> encode_call(const CallMessage& message);
/// Points into `bytes`. Errors: invalid_argument.
Result<CallMessage> decode_call(std::span<const std::byte> bytes);

}  // namespace cedar::transport
