#pragma once
// Where index keys may live besides the stage that made them. A full scan (spec/model.md 7.6) reads every visible
// index key of a sequence; a long sequence's keys can be spread, a range of blocks to a holder, and every holder then
// answers with its best. Merging these is exact (docs/decisions/0006), so that who scans what changes no bit.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/float_formats.h"
#include "core/ids.h"
#include "core/result.h"
#include "kernels/index_score.h"

namespace cedar::engine {

/// Columns of an index key come in groups that share a scale.
inline constexpr int64_t kIndexColumnsMultiple = 32;

using IndexSequence = StrongId<struct IndexSequenceTag, uint64_t>;

/// What is handed out of a KV block: the index keys of some KV sources, one source after the other.
struct IndexBlockLayout {
  struct Source {
    int32_t source = 0;          // index into ModelPlan::kv_sources
    int32_t rows_per_block = 0;  // keys of a block
    friend bool operator==(const Source&, const Source&) = default;
  };
  std::vector<Source> sources;  // ascending
  int32_t row_bytes = 0;        // of a packed q4x key

  int64_t bytes() const;
  /// Bytes from the start of the block, and the source's entry; null: not handed out.
  const Source* find(int32_t source, int64_t& offset) const;
  friend bool operator==(const IndexBlockLayout&, const IndexBlockLayout&) = default;
};

/// One layer's queries of some rows, and what is wanted of the keys: all that a scan needs besides the keys. Host
/// memory, borrowed.
struct IndexQuestions {
  int32_t source = 0;                  // index into ModelPlan::kv_sources
  const uint8_t* packed = nullptr;     // [rows, heads, packed q4x row]
  const Bf16* head_weights = nullptr;  // [rows, heads]: before the factor
  const int64_t* visible = nullptr;    // [rows] visible keys of the sequence
  int64_t rows = 0, heads = 0, columns = 0;
  float head_weight_scale = 0;
  kernels::IndexScoreMode mode = kernels::IndexScoreMode::fp32;
  int64_t best = 0;             // columns wanted of a row
  int64_t candidate_block = 0;  // columns of a candidate block; 0: none are wanted
  int64_t candidate_keep = 0;   // candidate blocks wanted of a row

  int64_t query_bytes() const;  // of a row
  /// Rows [begin, begin + count) of these.
  IndexQuestions slice(int64_t begin, int64_t count) const;
};

/// A column and its score, or a candidate block and the highest score in it.
struct IndexFind {
  float score = 0;
  int32_t index = 0;
  friend bool operator==(const IndexFind&, const IndexFind&) = default;
};

/// What a scan of some blocks found. Per row the best columns of those blocks, at most `best`, ascending, and at most
/// `candidate_keep` of their candidate blocks, ascending: all that can be in the pool besides the sequence's newest block.
struct IndexFindings {
  std::vector<int64_t> best_end, block_end;  // [rows] where a row's entries end
  std::vector<IndexFind> best, blocks;

  std::span<const IndexFind> best_of(int64_t row) const { return range(best, best_end, row); }
  std::span<const IndexFind> blocks_of(int64_t row) const { return range(blocks, block_end, row); }

 private:
  static std::span<const IndexFind> range(const std::vector<IndexFind>& all,
                                          const std::vector<int64_t>& ends, int64_t row) {
    const int64_t begin = row == 0 ? 0 : ends[static_cast<size_t>(row) - 1];
    return std::span<const IndexFind>(all).subspan(
        static_cast<size_t>(begin), static_cast<size_t>(ends[static_cast<size_t>(row)] - begin));
  }
};

/// Rows [row_begin, row_begin + rows) of the questions are those of one sequence.
struct IndexScanRows {
  IndexSequence sequence;
  int64_t row_begin = 0;
  int64_t rows = 0;
};

/// A scan under way.
class IndexScan {
 public:
  virtual ~IndexScan() = default;
  /// Blocks that others are asked for, ascending; the caller scans all others of the sequence. `entry`: of the
  /// IndexScanRows that the scan began with.
  virtual std::span<const int32_t> asked(size_t entry) const = 0;

  struct Answer {
    size_t entry = 0;
    std::vector<int32_t> blocks;  // what it is about, ascending
    std::optional<IndexFindings>
        findings;  // of the entry's rows; none: the caller scans these blocks, too
  };
  /// Waits, at the longest for a time that the service sets. The answers of an entry cover asked(entry), each block
  /// once. Once.
  virtual std::vector<Answer> collect() = 0;
};

/// Any thread. No method fails: what cannot be handed out or answered stays with the caller, who has all keys.
class IndexService {
 public:
  virtual ~IndexService() = default;

  virtual IndexSequence open(const IndexBlockLayout& layout) = 0;
  /// Which of the first `finished` blocks to append now, ascending; none where nobody has room. Never blocks.
  virtual std::vector<int32_t> wanted(IndexSequence sequence, int64_t finished) = 0;
  /// `keys`: of the blocks, one after the other, in the sequence's layout. REQUIRES: just what wanted() said. Never blocks.
  virtual void append(IndexSequence sequence, std::vector<int32_t> blocks,
                      std::vector<std::byte> keys) = 0;
  /// Unknown sequences are ignored.
  virtual void close(IndexSequence sequence) = 0;

  /// Asks all that hold blocks of the entries' sequences, and does not wait. Entries are in row order. The questions
  /// stay where they are until the scan was collected or destroyed.
  virtual std::unique_ptr<IndexScan> scan(const IndexQuestions& questions,
                                          std::span<const IndexScanRows> entries) = 0;
};

}  // namespace cedar::engine
