#include "actors/engram_wire.h"

#include <string>

#include "transport/wire.h"

namespace cedar::actors {

std::vector<std::byte> encode_engram_query(LayerId layer, std::span<const int64_t> rows) {
  transport::ByteWriter out;
  out.put(static_cast<uint32_t>(layer)).put(static_cast<uint32_t>(rows.size()));
  for (const int64_t row : rows) out.put(static_cast<uint64_t>(row));
  return out.take();
}

Result<EngramQuery> decode_engram_query(std::span<const std::byte> bytes) {
  transport::ByteReader in(bytes);
  EngramQuery query;
  query.layer = static_cast<LayerId>(in.get<uint32_t>());
  const size_t count = in.get<uint32_t>();
  if (in.failed() || count > kMaxEngramRows || in.rest().size() != count * sizeof(uint64_t)) {
    return make_error(Errc::invalid_argument,
                      "not a question for Engram rows: " + std::to_string(bytes.size()) +
                          " bytes, " + std::to_string(count) + " rows");
  }
  query.rows.resize(count);
  for (int64_t& row : query.rows) row = static_cast<int64_t>(in.get<uint64_t>());
  return query;
}

}  // namespace cedar::actors
