#include "engine/engram_tables.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "core/check.h"
#include "core/free_memory.h"
#include "core/units.h"

namespace cedar::engine {
namespace {

std::string gib(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / double(1_GiB));
  return text;
}

}  // namespace

EngramRowRange engram_row_range(int64_t rows, EngramShard shard) {
  return {rows * shard.index / shard.count, rows * (shard.index + 1) / shard.count};
}

int32_t engram_shard_of(int64_t rows, int64_t row, int32_t count) {
  CEDAR_ASSERT(row >= 0 && row < rows, "Engram row " + std::to_string(row));
  // The last i whose range begins at or before the row: rows * i / count < row + 1.
  return static_cast<int32_t>(((row + 1) * count - 1) / rows);
}

Result<std::shared_ptr<EngramTables>> EngramTables::create(
    std::shared_ptr<const model::Checkpoint> checkpoint, EngramShard shard) {
  if (shard.count < 1 || shard.index < 0 || shard.index >= shard.count) {
    return make_error(Errc::invalid_argument, "Engram shard " + std::to_string(shard.index) +
                                                  " of " + std::to_string(shard.count));
  }
  auto tables = std::make_shared<EngramTables>();
  tables->shard_ = shard;
  for (size_t layer = 0; layer < checkpoint->layers.size(); ++layer) {
    const auto& tensors = checkpoint->layers[layer];
    if (!tensors || !tensors->engram) continue;
    Table table;
    table.layer = static_cast<LayerId>(layer);
    table.rows = tensors->engram->embed_weight.shape.at(0);
    table.dim = tensors->engram->embed_weight.shape.at(1);
    table.groups = table.dim / 32;
    table.range = engram_row_range(table.rows, shard);
    table.codes = static_cast<const uint8_t*>(tensors->engram->embed_weight.data);
    table.scales = static_cast<const uint8_t*>(tensors->engram->embed_scale.data);
    tables->row_bytes_ = table.dim + table.groups;
    tables->tables_.push_back(table);
  }
  tables->checkpoint_ = std::move(checkpoint);
  return tables;
}

int64_t EngramTables::bytes() const {
  int64_t bytes = 0;
  for (const Table& table : tables_) bytes += (table.range.end - table.range.begin) * row_bytes_;
  return bytes;
}

Status EngramTables::copy(LayerId layer, std::span<const int64_t> row_ids, uint8_t* packed) const {
  const auto table = std::find_if(tables_.begin(), tables_.end(),
                                  [&](const Table& t) { return t.layer == layer; });
  if (table == tables_.end()) {
    return make_error(Errc::unavailable,
                      "no Engram table of layer " + std::to_string(layer) + " here");
  }
  for (const int64_t row : row_ids) {
    if (!table->range.contains(row)) {
      return make_error(Errc::invalid_argument, "Engram row " + std::to_string(row) + " of layer " +
                                                    std::to_string(layer) + " is not in shard " +
                                                    std::to_string(shard_.index) + " of " +
                                                    std::to_string(shard_.count) + ": rows " +
                                                    std::to_string(table->range.begin) + " to " +
                                                    std::to_string(table->range.end));
    }
    std::memcpy(packed, table->codes + row * table->dim, static_cast<size_t>(table->dim));
    std::memcpy(packed + table->dim, table->scales + row * table->groups,
                static_cast<size_t>(table->groups));
    packed += row_bytes_;
  }
  return {};
}

Status EngramTables::make_resident(const Progress& progress) const {
  return make_resident(available_memory(), progress);
}

Status EngramTables::make_resident(int64_t available_bytes, const Progress& progress) const {
  const int64_t total = bytes();
  if (available_bytes >= 0 && total > available_bytes) {
    return make_error(Errc::out_of_memory, "Engram shard " + std::to_string(shard_.index) + " of " +
                                               std::to_string(shard_.count) + " needs " +
                                               gib(total) + ", available are " +
                                               gib(available_bytes));
  }
  const auto page = static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  constexpr int64_t kPiece = 16_MiB;
  int64_t done = 0;
  volatile uint8_t seen = 0;
  for (const Table& table : tables_) {
    for (const auto& [data, row_bytes] :
         {std::pair(table.codes, table.dim), std::pair(table.scales, table.groups)}) {
      const uint8_t* const begin = data + table.range.begin * row_bytes;
      const int64_t size = (table.range.end - table.range.begin) * row_bytes;
      for (int64_t at = 0; at < size; at += kPiece) {
        const int64_t piece = std::min(kPiece, size - at);
        // Large reads instead of a page at a time; a hint that may be refused.
        const auto first = reinterpret_cast<uintptr_t>(begin + at) / static_cast<uintptr_t>(page) *
                           static_cast<uintptr_t>(page);
        ::madvise(reinterpret_cast<void*>(first),
                  reinterpret_cast<uintptr_t>(begin + at + piece) - first, MADV_WILLNEED);
        for (int64_t i = 0; i < piece; i += page) seen = begin[at + i];
        seen = begin[at + piece - 1];
        done += piece;
        if (progress && !progress(done, total)) {
          return make_error(Errc::cancelled, "reading the Engram tables was stopped");
        }
      }
    }
  }
  static_cast<void>(seen);
  return {};
}

}  // namespace cedar::engine
