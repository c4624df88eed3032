#include "actors/pipeline_wire.h"

#include <utility>

#include "actors/wire_fields.h"

namespace cedar::actors {
namespace {

using transport::ByteReader;
using transport::ByteWriter;

}  // namespace

std::vector<std::byte> encode(const PipelineChunk& message) {
  ByteWriter out;
  out.put(message.face).put(static_cast<uint32_t>(message.cut));
  put_route(out, message.route);
  put_ids(out, message.live);
  put_count(out, message.chunk.parts.size());
  for (size_t i = 0; i < message.chunk.parts.size(); ++i) {
    const engine::PrefillRows& part = message.chunk.parts[i];
    out.put(part.id.value);
    put_number(out, part.length);
    put_number(out, part.start);
    put_number(out, message.remaining.at(i).count());
    put_tokens(out, part.tokens);
    put_tokens(out, part.history);
  }
  put_octets(out, message.rows);
  return out.take();
}

Result<PipelineChunk> decode_chunk(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  PipelineChunk message;
  message.face = in.get<uint64_t>();
  message.cut = static_cast<LayerId>(in.get<uint32_t>());
  message.route = get_route(in);
  message.live = get_ids(in);
  message.chunk.parts.resize(get_count(in, 5 * sizeof(uint64_t)));
  for (engine::PrefillRows& part : message.chunk.parts) {
    part.id = RequestId(in.get<uint64_t>());
    part.length = get_number(in);
    part.start = get_number(in);
    message.remaining.emplace_back(get_number(in));
    part.tokens = get_tokens(in);
    part.history = get_tokens(in);
  }
  message.rows = get_octets(in);
  return whole(in, std::move(message), "chunk", bytes.size());
}

std::vector<std::byte> encode(const PipelineAnswer& answer) {
  ByteWriter out;
  put_endpoint(out, answer.owner);
  put_count(out, answer.parts.size());
  for (const PipelineProgress& part : answer.parts) {
    out.put(part.id.value);
    put_number(out, part.computed);
    out.put(static_cast<uint8_t>(part.finished ? 1 : 0));
    put_number(out, part.first_block);
    put_octets(out, part.blocks);
    put_octets(out, part.state);
  }
  return out.take();
}

Result<PipelineAnswer> decode_answer(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  PipelineAnswer answer;
  answer.owner = get_endpoint(in);
  answer.parts.resize(get_count(in, 4 * sizeof(uint64_t)));
  for (PipelineProgress& part : answer.parts) {
    part.id = RequestId(in.get<uint64_t>());
    part.computed = get_number(in);
    part.finished = in.get<uint8_t>() != 0;
    part.first_block = get_number(in);
    part.blocks = get_octets(in);
    part.state = get_octets(in);
  }
  return whole(in, std::move(answer), "answer to a chunk", bytes.size());
}

std::vector<std::byte> encode(const PipelineRelease& release) {
  ByteWriter out;
  out.put(release.face);
  put_route(out, release.route);
  out.put(release.id.value).put(static_cast<uint8_t>(release.revoke ? 1 : 0));
  return out.take();
}

Result<PipelineRelease> decode_release(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  PipelineRelease release;
  release.face = in.get<uint64_t>();
  release.route = get_route(in);
  release.id = RequestId(in.get<uint64_t>());
  release.revoke = in.get<uint8_t>() != 0;
  return whole(in, std::move(release), "release", bytes.size());
}

}  // namespace cedar::actors
