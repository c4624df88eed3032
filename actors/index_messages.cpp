#include "actors/index_messages.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "core/units.h"
#include "transport/wire.h"

namespace cedar::actors {
namespace {

using engine::IndexFind;
using transport::ByteReader;
using transport::ByteWriter;

static_assert(std::endian::native == std::endian::little, "arrays are sent as they lie in memory");
static_assert(sizeof(IndexFind) == 8 && sizeof(Bf16) == 2);

// More than any model has; what is sent cannot make a reader allocate without bound.
constexpr uint32_t kMostSources = 64;
constexpr uint32_t kMostHeads = 1024, kMostColumns = 4096, kMostFinds = 1u << 20;

Error bad(const char* what) {
  return make_error(Errc::invalid_argument, std::string("index message: ") + what);
}

template <class T>
void put_array(ByteWriter& writer, const std::vector<T>& values) {
  writer.put_bytes(std::as_bytes(std::span<const T>(values)));
}

template <class T>
std::vector<T> get_array(ByteReader& reader, size_t count) {
  const auto bytes = reader.get_bytes(count * sizeof(T));
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void put_count(ByteWriter& writer, int64_t value) { writer.put(static_cast<uint32_t>(value)); }

/// Of one row's entries: ascending, below `limit`, no NaN.
bool sound(std::span<const IndexFind> finds, int64_t limit) {
  int64_t last = -1;
  for (const IndexFind& find : finds) {
    if (find.index <= last || find.index >= limit || std::isnan(find.score)) return false;
    last = find.index;
  }
  return true;
}

}  // namespace

Bytes serialise(const AppendKeys& message) {
  ByteWriter writer;
  writer.put(message.part);
  put_count(writer, message.first);
  put_count(writer, message.layout.row_bytes);
  put_count(writer, static_cast<int64_t>(message.layout.sources.size()));
  for (const engine::IndexBlockLayout::Source& s : message.layout.sources) {
    put_count(writer, s.source);
    put_count(writer, s.rows_per_block);
  }
  put_count(writer, static_cast<int64_t>(message.blocks.size()));
  put_array(writer, message.blocks);
  writer.put_bytes(message.keys);
  return writer.take();
}

Result<AppendKeys> parse_append(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  AppendKeys message;
  message.part = reader.get<uint64_t>();
  message.first = reader.get<uint32_t>();
  message.layout.row_bytes = static_cast<int32_t>(reader.get<uint32_t>());
  const auto sources = reader.get<uint32_t>();
  if (sources > kMostSources) return bad("sources");
  for (uint32_t i = 0; i < sources; ++i) {
    engine::IndexBlockLayout::Source& s = message.layout.sources.emplace_back();
    s.source = static_cast<int32_t>(reader.get<uint32_t>());
    s.rows_per_block = static_cast<int32_t>(reader.get<uint32_t>());
  }
  const auto blocks = reader.get<uint32_t>();
  message.blocks = get_array<int32_t>(reader, blocks);
  if (reader.failed()) return bad("it ends too early");
  message.keys = reader.rest();
  return message;
}

ScanWriter::ScanWriter(const engine::IndexQuestions& like) : like_(like) {}

void ScanWriter::add_rows(const ScanPart& part, const engine::IndexQuestions& questions,
                          int64_t begin) {
  const engine::IndexQuestions rows = questions.slice(begin, part.rows);
  parts_.push_back(part);
  packed_.insert(packed_.end(), rows.packed, rows.packed + part.rows * rows.query_bytes());
  head_weights_.insert(head_weights_.end(), rows.head_weights,
                       rows.head_weights + part.rows * rows.heads);
  visible_.insert(visible_.end(), rows.visible, rows.visible + part.rows);
}

Bytes ScanWriter::take() const {
  ByteWriter writer;
  put_count(writer, like_.source);
  put_count(writer, like_.heads);
  put_count(writer, like_.columns);
  writer.put(std::bit_cast<uint32_t>(like_.head_weight_scale));
  writer.put(static_cast<uint8_t>(like_.mode));
  put_count(writer, like_.best);
  put_count(writer, like_.candidate_block);
  put_count(writer, like_.candidate_keep);
  put_count(writer, static_cast<int64_t>(parts_.size()));
  for (const ScanPart& part : parts_) {
    writer.put(part.part);
    put_count(writer, part.blocks);
    put_count(writer, part.rows);
  }
  put_count(writer, static_cast<int64_t>(visible_.size()));
  put_array(writer, visible_);
  put_array(writer, packed_);
  put_array(writer, head_weights_);
  return writer.take();
}

Result<ScanKeys> parse_scan(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  ScanKeys message;
  engine::IndexQuestions& q = message.questions;
  const auto source = reader.get<uint32_t>();
  const auto heads = reader.get<uint32_t>();
  const auto columns = reader.get<uint32_t>();
  q.head_weight_scale = std::bit_cast<float>(reader.get<uint32_t>());
  const auto mode = reader.get<uint8_t>();
  const auto best = reader.get<uint32_t>();
  const auto block = reader.get<uint32_t>();
  const auto keep = reader.get<uint32_t>();
  if (heads < 1 || heads > kMostHeads) return bad("heads");
  if (columns < 1 || columns > kMostColumns || columns % engine::kIndexColumnsMultiple != 0) {
    return bad("columns");
  }
  if (mode > static_cast<uint8_t>(kernels::IndexScoreMode::fp32)) return bad("mode");
  if (source > INT32_MAX || best > kMostFinds || block > kMostFinds || keep > kMostFinds) {
    return bad("counts");
  }
  q.source = static_cast<int32_t>(source);
  q.heads = heads;
  q.columns = columns;
  q.mode = static_cast<kernels::IndexScoreMode>(mode);
  q.best = best;
  q.candidate_block = block;
  q.candidate_keep = keep;
  const auto parts = reader.get<uint32_t>();
  for (uint32_t i = 0; i < parts && !reader.failed(); ++i) {
    ScanPart& part = message.parts.emplace_back();
    part.part = reader.get<uint64_t>();
    part.blocks = reader.get<uint32_t>();
    part.rows = reader.get<uint32_t>();
  }
  q.rows = reader.get<uint32_t>();
  const auto rows = static_cast<size_t>(q.rows);
  message.visible = get_array<int64_t>(reader, rows);
  message.packed = get_array<uint8_t>(reader, rows * static_cast<size_t>(q.query_bytes()));
  message.head_weights = get_array<Bf16>(reader, rows * heads);
  if (!reader.finished()) return bad("it has another length");
  for (const int64_t visible : message.visible) {
    if (visible < 0 || visible > INT32_MAX) return bad("visible");
  }
  q.packed = message.packed.data();
  q.head_weights = message.head_weights.data();
  q.visible = message.visible.data();
  return message;
}

Bytes serialise(const engine::IndexFindings& findings) {
  ByteWriter writer;
  put_count(writer, static_cast<int64_t>(findings.best_end.size()));
  put_array(writer, findings.best_end);
  put_array(writer, findings.block_end);
  put_array(writer, findings.best);
  put_array(writer, findings.blocks);
  return writer.take();
}

Result<engine::IndexFindings> parse_findings(std::span<const std::byte> bytes,
                                             const engine::IndexQuestions& asked,
                                             std::span<const int64_t> visible) {
  ByteReader reader(bytes);
  engine::IndexFindings findings;
  if (reader.get<uint32_t>() != visible.size()) return bad("rows");
  findings.best_end = get_array<int64_t>(reader, visible.size());
  findings.block_end = get_array<int64_t>(reader, visible.size());
  if (reader.failed()) return bad("it ends too early");
  int64_t best = 0, blocks = 0;
  for (size_t i = 0; i < visible.size(); ++i) {
    const int64_t best_count = findings.best_end[i] - best;
    const int64_t block_count = findings.block_end[i] - blocks;
    if (best_count < 0 || best_count > asked.best) return bad("columns of a row");
    if (block_count < 0 || block_count > asked.candidate_keep) return bad("blocks of a row");
    best = findings.best_end[i];
    blocks = findings.block_end[i];
  }
  findings.best = get_array<IndexFind>(reader, static_cast<size_t>(best));
  findings.blocks = get_array<IndexFind>(reader, static_cast<size_t>(blocks));
  if (!reader.finished()) return bad("it has another length");
  for (size_t i = 0; i < visible.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    const int64_t block_limit =
        asked.candidate_block == 0 ? 0 : ceil_div(visible[i], asked.candidate_block);
    if (!sound(findings.best_of(row), visible[i])) return bad("a column");
    if (!sound(findings.blocks_of(row), block_limit)) return bad("a candidate block");
  }
  return findings;
}

Bytes serialise_close(uint64_t part) {
  ByteWriter writer;
  writer.put(part);
  return writer.take();
}

Result<uint64_t> parse_close(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto part = reader.get<uint64_t>();
  if (!reader.finished()) return bad("it has another length");
  return part;
}

}  // namespace cedar::actors
