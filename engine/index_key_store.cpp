#include "engine/index_key_store.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/units.h"
#include "kernels/quantize.h"

namespace cedar::engine {
namespace {

// Memory is given out in pages, so that parts of different layouts leave no holes; a page holds blocks of one part. Where
// a block begins is counted in units, which an int32 of a page table can count for 128 GiB.
constexpr int64_t kPageBytes = 64_KiB;
constexpr int64_t kUnitBytes = Buffer::kAlignment;

std::string name_of(IndexPartId part) {
  return "part " + std::to_string(part.number) + " of owner " + std::to_string(part.owner);
}

Error no_part(IndexPartId part) { return make_error(Errc::not_found, name_of(part)); }

Error wrong(IndexPartId part, const std::string& what) {
  return make_error(Errc::invalid_argument, name_of(part) + ": " + what);
}

}  // namespace

Result<IndexKeyStore> IndexKeyStore::create(int64_t bytes) {
  if (bytes < kPageBytes || bytes / kUnitBytes > INT32_MAX) {
    return make_error(Errc::invalid_argument, "memory for index keys: must be in [" +
                                                  std::to_string(kPageBytes) + ", " +
                                                  std::to_string(INT32_MAX * kUnitBytes) +
                                                  "] bytes, got " + std::to_string(bytes));
  }
  IndexKeyStore store;
  store.pages_ = bytes / kPageBytes;
  CEDAR_TRY(store.memory_, Buffer::allocate(Device{}, store.pages_ * kPageBytes));
  for (int64_t i = store.pages_ - 1; i >= 0; --i) {
    store.free_pages_.push_back(static_cast<int32_t>(i));
  }
  return store;
}

Status IndexKeyStore::open(IndexPartId id, const IndexBlockLayout& layout, TimePoint lease_end) {
  bool sound = !layout.sources.empty() && layout.row_bytes > 0;
  for (const IndexBlockLayout::Source& s : layout.sources) {
    sound = sound && s.rows_per_block > 0 && s.rows_per_block <= kPageBytes;
  }
  if (!sound || layout.row_bytes > kPageBytes || layout.bytes() > kPageBytes) {
    return wrong(id, "blocks of " + std::to_string(layout.sources.size()) +
                         " sources with keys of " + std::to_string(layout.row_bytes) +
                         " bytes, expected at least 1 and at most " + std::to_string(kPageBytes) +
                         " bytes a block");
  }
  Part part;
  part.layout = layout;
  part.block_bytes = align_up(layout.bytes(), kUnitBytes);
  part.blocks_per_page = kPageBytes / part.block_bytes;
  part.lease_end = lease_end;
  if (!parts_.emplace(id, std::move(part)).second) return wrong(id, "is open already");
  return {};
}

Status IndexKeyStore::append(IndexPartId id, int64_t first, std::span<const int32_t> blocks,
                             std::span<const std::byte> keys, TimePoint lease_end) {
  const auto found = parts_.find(id);
  if (found == parts_.end()) return no_part(id);
  Part& part = found->second;
  const auto held = static_cast<int64_t>(part.blocks.size());
  const auto count = static_cast<int64_t>(blocks.size());
  if (first != held) {
    return wrong(id,
                 "block " + std::to_string(first) + " of the part after " + std::to_string(held));
  }
  const int64_t bytes = part.layout.bytes();
  if (static_cast<int64_t>(keys.size()) != count * bytes) {
    return wrong(id, std::to_string(keys.size()) + " bytes of keys, expected " +
                         std::to_string(count * bytes));
  }
  int32_t last = held > 0 ? part.blocks.back() : -1;
  for (const int32_t block : blocks) {
    if (block <= last) {
      return wrong(id, "block " + std::to_string(block) + " after block " + std::to_string(last));
    }
    last = block;
  }
  const auto owned = static_cast<int64_t>(part.pages.size());
  const int64_t need = ceil_div(held + count, part.blocks_per_page) - owned;
  if (need > static_cast<int64_t>(free_pages_.size())) {
    return make_error(Errc::overloaded,
                      name_of(id) + ": " + std::to_string(need * kPageBytes) + " bytes needed, " +
                          std::to_string(static_cast<int64_t>(free_pages_.size()) * kPageBytes) +
                          " free");
  }
  for (int64_t i = 0; i < need; ++i) {
    part.pages.push_back(free_pages_.back());
    free_pages_.pop_back();
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = held + i;
    const int64_t page = part.pages[static_cast<size_t>(at / part.blocks_per_page)];
    const int64_t offset = page * kPageBytes + at % part.blocks_per_page * part.block_bytes;
    std::memcpy(memory_.data() + offset, keys.data() + i * bytes, static_cast<size_t>(bytes));
    part.blocks.push_back(blocks[static_cast<size_t>(i)]);
    part.units.push_back(static_cast<int32_t>(offset / kUnitBytes));
  }
  part.lease_end = std::max(part.lease_end, lease_end);
  return {};
}

Result<IndexFindings> IndexKeyStore::scan(kernels::KernelContext& ctx,
                                          const IndexQuestions& questions,
                                          std::span<const IndexPartRows> asked,
                                          TimePoint lease_end) {
  kernels::PagedRows keys;
  keys.base = memory_.as<uint8_t>();
  keys.page_bytes = kUnitBytes;
  std::vector<HeldBlocks> parts;
  int64_t rows = 0;
  for (const IndexPartRows& entry : asked) {
    const auto found = parts_.find(entry.part);
    if (found == parts_.end()) return no_part(entry.part);
    Part& part = found->second;
    int64_t offset = 0;
    const IndexBlockLayout::Source* source = part.layout.find(questions.source, offset);
    if (source == nullptr) {
      return wrong(entry.part, "has no keys of source " + std::to_string(questions.source));
    }
    if (part.layout.row_bytes !=
        kernels::packed_row_bytes(kernels::RowFormat::q4x, questions.columns)) {
      return wrong(entry.part, "has keys of " + std::to_string(part.layout.row_bytes) +
                                   " bytes, asked for " + std::to_string(questions.columns) +
                                   " columns");
    }
    if (entry.blocks < 0 || entry.blocks > static_cast<int64_t>(part.blocks.size())) {
      return wrong(entry.part, std::to_string(entry.blocks) + " blocks, holds " +
                                   std::to_string(part.blocks.size()));
    }
    if (rows > 0 && (keys.rows_per_page != source->rows_per_block || keys.offset_bytes != offset ||
                     keys.row_bytes != part.layout.row_bytes)) {
      return wrong(entry.part, "lies in another way than the part before it");
    }
    keys.offset_bytes = offset;
    keys.row_bytes = part.layout.row_bytes;
    keys.rows_per_page = source->rows_per_block;
    part.lease_end = std::max(part.lease_end, lease_end);
    HeldBlocks& held = parts.emplace_back();
    held.blocks.assign(part.blocks.begin(), part.blocks.begin() + entry.blocks);
    held.pages.assign(part.units.begin(), part.units.begin() + entry.blocks);
    held.rows = entry.rows;
    if (entry.rows < 1 || entry.rows > questions.rows - rows) {
      return wrong(entry.part,
                   std::to_string(entry.rows) + " rows of " + std::to_string(questions.rows));
    }
    rows += entry.rows;
  }
  if (rows != questions.rows || rows == 0) {
    return make_error(Errc::invalid_argument, "rows: " + std::to_string(questions.rows) +
                                                  " questions about parts with " +
                                                  std::to_string(rows) + " rows");
  }
  return scan_blocks(ctx, questions, keys, parts);
}

IndexKeyStore::Parts::iterator IndexKeyStore::erase(Parts::iterator at) {
  const std::vector<int32_t>& pages = at->second.pages;
  free_pages_.insert(free_pages_.end(), pages.begin(), pages.end());
  return parts_.erase(at);
}

void IndexKeyStore::close(IndexPartId part) {
  const auto found = parts_.find(part);
  if (found != parts_.end()) erase(found);
}

void IndexKeyStore::close_owner(uint64_t owner) {
  for (auto at = parts_.begin(); at != parts_.end();) {
    at = at->first.owner == owner ? erase(at) : std::next(at);
  }
}

int64_t IndexKeyStore::expire(TimePoint now) {
  int64_t count = 0;
  for (auto at = parts_.begin(); at != parts_.end();) {
    if (at->second.lease_end > now) {
      ++at;
      continue;
    }
    at = erase(at);
    ++count;
  }
  return count;
}

IndexKeyStoreStats IndexKeyStore::stats() const {
  IndexKeyStoreStats stats;
  stats.bytes_total = pages_ * kPageBytes;
  stats.bytes_used = (pages_ - static_cast<int64_t>(free_pages_.size())) * kPageBytes;
  stats.parts = static_cast<int64_t>(parts_.size());
  for (const auto& [id, part] : parts_) stats.blocks += static_cast<int64_t>(part.blocks.size());
  return stats;
}

}  // namespace cedar::engine
