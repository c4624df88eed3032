#pragma once
// Fields that the messages of pipelines share, on top of transport/wire.h. Internal to the *_wire.cpp files.

#include <limits>
#include <string>
#include <vector>

#include "actors/data_plane.h"
#include "core/ids.h"
#include "core/result.h"
#include "transport/wire.h"

namespace cedar::actors {

inline void put_count(transport::ByteWriter& out, size_t count) {
  out.put(static_cast<uint32_t>(count));
}

/// The count of a list whose entries have at least `least` bytes: more than the rest can hold is no count.
inline size_t get_count(transport::ByteReader& in, size_t least) {
  const size_t count = in.get<uint32_t>();
  if (count <= in.rest().size() / least) return count;
  (void)in.get_bytes(std::numeric_limits<size_t>::max());  // fails the reader
  return 0;
}

inline void put_number(transport::ByteWriter& out, int64_t value) {
  out.put(static_cast<uint64_t>(value));
}
inline int64_t get_number(transport::ByteReader& in) {
  return static_cast<int64_t>(in.get<uint64_t>());
}

inline void put_octets(transport::ByteWriter& out, std::span<const std::byte> bytes) {
  put_count(out, bytes.size());
  out.put_bytes(bytes);
}
inline std::vector<std::byte> get_octets(transport::ByteReader& in) {
  const auto bytes = in.get_bytes(get_count(in, 1));
  return {bytes.begin(), bytes.end()};
}

inline void put_endpoint(transport::ByteWriter& out, const DataEndpoint& endpoint) {
  out.put_text(endpoint.host).put(endpoint.port).put(endpoint.node).put(endpoint.generation);
}
inline DataEndpoint get_endpoint(transport::ByteReader& in) {
  DataEndpoint endpoint;
  endpoint.host = in.get_text();
  endpoint.port = in.get<uint16_t>();
  endpoint.node = in.get<uint32_t>();
  endpoint.generation = in.get<uint64_t>();
  return endpoint;
}

inline void put_route(transport::ByteWriter& out, const std::vector<DataEndpoint>& route) {
  put_count(out, route.size());
  for (const DataEndpoint& endpoint : route) put_endpoint(out, endpoint);
}
inline std::vector<DataEndpoint> get_route(transport::ByteReader& in) {
  std::vector<DataEndpoint> route(get_count(in, 16));
  for (DataEndpoint& endpoint : route) endpoint = get_endpoint(in);
  return route;
}

inline void put_ids(transport::ByteWriter& out, const std::vector<RequestId>& ids) {
  put_count(out, ids.size());
  for (const RequestId id : ids) out.put(id.value);
}
inline std::vector<RequestId> get_ids(transport::ByteReader& in) {
  std::vector<RequestId> ids(get_count(in, sizeof(uint64_t)));
  for (RequestId& id : ids) id = RequestId(in.get<uint64_t>());
  return ids;
}

inline void put_tokens(transport::ByteWriter& out, const std::vector<TokenId>& tokens) {
  put_count(out, tokens.size());
  for (const TokenId token : tokens) out.put(static_cast<uint32_t>(token));
}
inline std::vector<TokenId> get_tokens(transport::ByteReader& in) {
  std::vector<TokenId> tokens(get_count(in, sizeof(uint32_t)));
  for (TokenId& token : tokens) token = static_cast<TokenId>(in.get<uint32_t>());
  return tokens;
}

/// The message, if the bytes were all of it and nothing else.
template <class T>
Result<T> whole(const transport::ByteReader& in, T message, const char* what, size_t bytes) {
  if (in.finished()) return message;
  return make_error(Errc::invalid_argument,
                    std::string(what) + ": not what " + std::to_string(bytes) + " bytes say");
}

}  // namespace cedar::actors
