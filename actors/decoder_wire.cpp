#include "actors/decoder_wire.h"

#include "actors/wire_fields.h"
#include "actors/wire_values.h"

#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>

#include <utility>

namespace cedar::actors {
namespace {

using transport::ByteReader;
using transport::ByteWriter;

/// Values of the engine go as they do in messages between actors.
template <class T>
void put_value(ByteWriter& out, const T& value) {
  std::vector<char> buffer;
  caf::binary_serializer sink(nullptr, buffer);
  // Nothing of these types can fail to be written.
  (void)sink(const_cast<T&>(value));
  put_octets(out, std::as_bytes(std::span(buffer)));
}

template <class T>
Status get_value(ByteReader& in, T& value, const char* what) {
  const auto bytes = get_octets(in);
  caf::binary_deserializer source(nullptr, reinterpret_cast<const char*>(bytes.data()),
                                  bytes.size());
  if (source(value) || source.remaining() != 0) {
    return make_error(Errc::invalid_argument, std::string(what) + ": not a value");
  }
  return {};
}

}  // namespace

std::vector<std::byte> encode(const SequenceOpening& message) {
  ByteWriter out;
  out.put(message.face).put(message.id.value);
  put_number(out, message.read);
  put_number(out, message.tokens);
  out.put(static_cast<uint8_t>(message.request ? 1 : 0));
  if (message.request) put_value(out, *message.request);
  return out.take();
}

Result<SequenceOpening> decode_opening(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  SequenceOpening message;
  message.face = in.get<uint64_t>();
  message.id = RequestId(in.get<uint64_t>());
  message.read = get_number(in);
  message.tokens = get_number(in);
  if (in.get<uint8_t>() != 0) {
    CEDAR_CHECK_OK(get_value(in, message.request.emplace(), "request"));
  }
  return whole(in, std::move(message), "opening of a sequence", bytes.size());
}

std::vector<std::byte> encode(const SequenceBlock& message) {
  ByteWriter out;
  out.put(message.face).put(message.id.value);
  put_number(out, message.index);
  put_octets(out, message.bytes);
  return out.take();
}

Result<SequenceBlock> decode_block(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  SequenceBlock message;
  message.face = in.get<uint64_t>();
  message.id = RequestId(in.get<uint64_t>());
  message.index = get_number(in);
  message.bytes = in.get_bytes(get_count(in, 1));
  return whole(in, message, "block of a sequence", bytes.size());
}

std::vector<std::byte> encode(const SequenceStart& message) {
  ByteWriter out;
  out.put(message.face).put(message.id.value);
  put_octets(out, message.state);
  return out.take();
}

Result<SequenceStart> decode_start(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  SequenceStart message;
  message.face = in.get<uint64_t>();
  message.id = RequestId(in.get<uint64_t>());
  message.state = get_octets(in);
  return whole(in, std::move(message), "start of a sequence", bytes.size());
}

std::vector<std::byte> encode(const SequenceClose& message) {
  ByteWriter out;
  out.put(message.face).put(message.id.value);
  return out.take();
}

Result<SequenceClose> decode_close(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  SequenceClose message;
  message.face = in.get<uint64_t>();
  message.id = RequestId(in.get<uint64_t>());
  return whole(in, message, "end of a sequence", bytes.size());
}

std::vector<std::byte> encode(const PipelineStep& message) {
  ByteWriter out;
  out.put(message.face).put(static_cast<uint32_t>(message.cut));
  put_route(out, message.route);
  out.put(message.newest);
  put_ids(out, message.live);
  put_count(out, message.chunk.parts.size());
  for (const engine::DecodeRows& part : message.chunk.parts) {
    out.put(part.id.value);
    put_number(out, part.start);
    out.put(static_cast<uint8_t>((part.replay ? 1 : 0) | (part.ends_replay ? 2 : 0)));
    put_tokens(out, part.tokens);
    put_tokens(out, part.history);
  }
  put_octets(out, message.rows);
  return out.take();
}

Result<PipelineStep> decode_step(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  PipelineStep message;
  message.face = in.get<uint64_t>();
  message.cut = static_cast<LayerId>(in.get<uint32_t>());
  message.route = get_route(in);
  message.newest = in.get<uint64_t>();
  message.live = get_ids(in);
  message.chunk.parts.resize(get_count(in, 3 * sizeof(uint64_t)));
  for (engine::DecodeRows& part : message.chunk.parts) {
    part.id = RequestId(in.get<uint64_t>());
    part.start = get_number(in);
    const auto flags = in.get<uint8_t>();
    part.replay = (flags & 1) != 0;
    part.ends_replay = (flags & 2) != 0;
    part.tokens = get_tokens(in);
    part.history = get_tokens(in);
  }
  message.rows = get_octets(in);
  return whole(in, std::move(message), "step", bytes.size());
}

std::vector<std::byte> encode(const std::vector<engine::TokenEvent>& events) {
  ByteWriter out;
  put_value(out, events);
  return out.take();
}

Result<std::vector<engine::TokenEvent>> decode_events(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  std::vector<engine::TokenEvent> events;
  CEDAR_CHECK_OK(get_value(in, events, "events"));
  return whole(in, std::move(events), "answer to a step", bytes.size());
}

}  // namespace cedar::actors
