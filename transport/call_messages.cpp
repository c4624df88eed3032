#include "transport/call_messages.h"

#include "transport/wire.h"

namespace cedar::transport {

std::vector<std::byte> encode_call(const CallMessage& message) {
  ByteWriter out;
  out.put(static_cast<uint8_t>(message.type)).put(message.id).put(message.subject);
  out.put(message.remaining_ms).put(message.total_bytes).put(message.offset);
  out.put_bytes(message.piece);
  return out.take();
}

Result<CallMessage> decode_call(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  CallMessage message;
  const auto type = in.get<uint8_t>();
  message.type = static_cast<CallMessage::Type>(type);
  message.id = in.get<uint64_t>();
  message.subject = in.get<uint16_t>();
  message.remaining_ms = in.get<uint32_t>();
  message.total_bytes = in.get<uint32_t>();
  message.offset = in.get<uint32_t>();
  message.piece = in.rest();
  const uint64_t end = uint64_t{message.offset} + message.piece.size();
  if (in.failed() || (type != 1 && type != 2) || end > message.total_bytes ||
      (message.piece.empty() && message.total_bytes > 0)) {
    return make_error(Errc::invalid_argument,
                      "not a message of a call: " + std::to_string(bytes.size()) + " bytes");
  }
  return message;
}

}  // namespace cedar::transport
