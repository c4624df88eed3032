#include "transport/messages.h"

#include <utility>

#include "core/check.h"
#include "transport/wire.h"

namespace cedar::transport {
namespace {

constexpr uint32_t kHelloMagic = 0x31544443;  // "CDT1"

void put(ByteWriter& out, const NodeIdentity& identity) {
  out.put(identity.node.value).put(identity.generation);
}
void put(ByteWriter& out, const Error& error) {
  out.put(static_cast<uint8_t>(error.code)).put_text(error.context);
}
NodeIdentity get_identity(ByteReader& in) {
  NodeIdentity identity;
  identity.node = NodeId(in.get<uint32_t>());
  identity.generation = in.get<uint64_t>();
  return identity;
}
Error get_error(ByteReader& in) {
  // A code of a newer peer is still an error.
  const auto code = in.get<uint8_t>();
  const bool known = code <= static_cast<uint8_t>(Errc::internal);
  return Error{known ? static_cast<Errc>(code) : Errc::internal, in.get_text()};
}

/// The rest of a message: `count` ranges and nothing else.
std::vector<ByteRange> get_ranges(ByteReader& in, size_t count, size_t most) {
  if (count > most || in.rest().size() != count * 16) {
    in.get_bytes(in.rest().size() + 1);  // fails the reader
    return {};
  }
  std::vector<ByteRange> ranges(count);
  for (ByteRange& range : ranges) {
    range.offset = in.get<uint64_t>();
    range.bytes = in.get<uint64_t>();
  }
  return ranges;
}

struct Encoder {
  ByteWriter& out;

  void operator()(const Hello& m) {
    out.put(kHelloMagic).put(m.version);
    put(out, m.sender);
    out.put(static_cast<uint8_t>(m.expected.has_value()));
    put(out, m.expected.value_or(NodeIdentity{}));
    out.put_text(m.cluster);
  }
  void operator()(const Welcome& m) { put(out, m.sender); }
  void operator()(const Refuse& m) { put(out, m.error); }
  void operator()(const Ping&) {}
  void operator()(const Pong&) {}
  void operator()(const Goodbye& m) { out.put_text(m.reason); }
  void operator()(const PartRequest& m) {
    CEDAR_ASSERT(m.ranges.size() <= PartRequest::kMaxRanges, std::to_string(m.ranges.size()));
    out.put(m.transfer.value).put(m.part).put(m.owner_generation);
    out.put(m.region.value).put(m.lease.value).put(static_cast<uint16_t>(m.ranges.size()));
    for (const ByteRange& range : m.ranges) out.put(range.offset).put(range.bytes);
  }
  void operator()(const PartRefused& m) {
    out.put(m.transfer.value).put(m.part);
    put(out, m.error);
  }
  void operator()(const Confirm& m) {
    CEDAR_ASSERT(m.ranges.size() <= Confirm::kMaxRanges, std::to_string(m.ranges.size()));
    out.put(m.transfer.value).put(m.owner_generation).put(m.region.value).put(m.lease.value);
    out.put(static_cast<uint8_t>(m.release)).put(static_cast<uint32_t>(m.ranges.size()));
    for (const ByteRange& range : m.ranges) out.put(range.offset).put(range.bytes);
  }
  void operator()(const Confirmed& m) {
    out.put(m.transfer.value);
    put(out, m.error);
  }
  void operator()(const Release& m) { out.put(m.owner_generation).put(m.lease.value); }
  void operator()(const UserMessage& m) { out.put(m.kind).put_bytes(m.bytes); }
};

Message get_hello(ByteReader& in) {
  Hello m;
  m.version = in.get<uint16_t>();
  m.sender = get_identity(in);
  const bool expects = in.get<uint8_t>() != 0;
  const NodeIdentity expected = get_identity(in);
  if (expects) m.expected = expected;
  m.cluster = in.get_text();
  return m;
}

Message get_part_request(ByteReader& in) {
  PartRequest m;
  m.transfer = TransferId(in.get<uint64_t>());
  m.part = in.get<uint32_t>();
  m.owner_generation = in.get<uint64_t>();
  m.region = RegionId(in.get<uint64_t>());
  m.lease = LeaseId(in.get<uint64_t>());
  m.ranges = get_ranges(in, in.get<uint16_t>(), PartRequest::kMaxRanges);
  return m;
}

Message get_message(size_t type, ByteReader& in) {
  const auto transfer = [&in] { return TransferId(in.get<uint64_t>()); };
  switch (type) {
    case 0: return get_hello(in);
    case 1: return Welcome{get_identity(in)};
    case 2: return Refuse{get_error(in)};
    case 3: return Ping{};
    case 4: return Pong{};
    case 5: return Goodbye{in.get_text()};
    case 6: return get_part_request(in);
    case 7: {
      PartRefused m{transfer(), 0, {}};
      m.part = in.get<uint32_t>();
      m.error = get_error(in);
      return m;
    }
    case 8: {
      Confirm m;
      m.transfer = transfer();
      m.owner_generation = in.get<uint64_t>();
      m.region = RegionId(in.get<uint64_t>());
      m.lease = LeaseId(in.get<uint64_t>());
      m.release = in.get<uint8_t>() != 0;
      m.ranges = get_ranges(in, in.get<uint32_t>(), Confirm::kMaxRanges);
      return m;
    }
    case 9: {
      Confirmed m{transfer(), {}};
      m.error = get_error(in);
      return m;
    }
    case 10: {
      Release m;
      m.owner_generation = in.get<uint64_t>();
      m.lease = LeaseId(in.get<uint64_t>());
      return m;
    }
    default: {
      UserMessage m;
      m.kind = in.get<uint16_t>();
      m.bytes = in.get_bytes(in.rest().size());
      return m;
    }
  }
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  ByteWriter out;
  out.put(static_cast<uint8_t>(message.index()));
  std::visit(Encoder{out}, message);
  return out.take();
}

Result<Message> decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const size_t type = in.get<uint8_t>();
  if (in.failed() || type >= std::variant_size_v<Message>)
    return make_error(Errc::invalid_argument, "message of type " + std::to_string(type));
  if (type == 0 && in.get<uint32_t>() != kHelloMagic)
    return make_error(Errc::invalid_argument, "hello of something that is not Cedar");
  Message message = get_message(type, in);
  if (!in.finished()) {
    return make_error(Errc::invalid_argument, "message of type " + std::to_string(type) + " with " +
                                                  std::to_string(bytes.size()) + " bytes");
  }
  return message;
}

}  // namespace cedar::transport
