#pragma once
// The holder's side of engine/index_service.h: index keys of ranges of blocks of other stages' sequences, in memory of a
// fixed size, under leases. Knows no model: whoever opens a part says how its blocks look.

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "core/result.h"
#include "engine/index_scan.h"
#include "engine/index_service.h"

namespace cedar::engine {

/// A sequence's blocks at one holder, named by their owner.
struct IndexPartId {
  uint64_t owner = 0;  // one life of one node
  uint64_t number = 0;
  friend auto operator<=>(const IndexPartId&, const IndexPartId&) = default;
};

/// `rows` questions about the first `blocks` of a part's blocks, in the order in which they came.
struct IndexPartRows {
  IndexPartId part;
  int64_t blocks = 0;
  int64_t rows = 0;
};

struct IndexKeyStoreStats {
  int64_t bytes_total = 0;
  int64_t bytes_used = 0;  // in whole pages
  int64_t parts = 0;
  int64_t blocks = 0;
};

/// One thread at a time.
class IndexKeyStore {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Rounded down to whole pages. Errors: invalid_argument (less than a page), out_of_memory.
  static Result<IndexKeyStore> create(int64_t bytes);

  /// An empty part. Errors: invalid_argument (a layout without sources, or with more bytes a block than fit a page;
  /// a part that is open).
  Status open(IndexPartId part, const IndexBlockLayout& layout, TimePoint lease_end);
  /// Blocks [first, first + blocks.size()) in the part's order. All or nothing. Errors: not_found (no such part, or its lease
  /// has ended), invalid_argument (blocks not ascending, not the next ones, keys of another size), overloaded, naming need
  /// and free.
  Status append(IndexPartId part, int64_t first, std::span<const int32_t> blocks,
                std::span<const std::byte> keys, TimePoint lease_end);
  /// Errors: not_found, invalid_argument (more blocks than the part has, a source it does not hold, rows that do not add up).
  Result<IndexFindings> scan(kernels::KernelContext& ctx, const IndexQuestions& questions,
                             std::span<const IndexPartRows> parts, TimePoint lease_end);
  void close(IndexPartId part);
  /// All parts of an owner.
  void close_owner(uint64_t owner);
  /// Parts whose lease has ended; returns how many.
  int64_t expire(TimePoint now);

  IndexKeyStoreStats stats() const;

 private:
  struct Part {
    IndexBlockLayout layout;
    int64_t block_bytes = 0;      // aligned
    int64_t blocks_per_page = 0;  // of memory
    std::vector<int32_t> blocks;  // ascending
    std::vector<int32_t> units;   // where each begins
    std::vector<int32_t> pages;   // of memory
    TimePoint lease_end;
  };
  using Parts = std::map<IndexPartId, Part>;

  IndexKeyStore() = default;
  Parts::iterator erase(Parts::iterator at);

  Buffer memory_;
  std::vector<int32_t> free_pages_;
  int64_t pages_ = 0;
  Parts parts_;
};

}  // namespace cedar::engine
