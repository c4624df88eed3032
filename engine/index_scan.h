#pragma once
// Scans of some blocks of a sequence, and the exact union of several such scans. Host memory only.

#include <cstdint>
#include <span>
#include <vector>

#include "core/result.h"
#include "engine/index_service.h"
#include "kernels/kernel_context.h"
#include "kernels/paged_rows.h"

namespace cedar::engine {

/// Blocks of one sequence and where they are. The next `rows` questions are about them.
struct HeldBlocks {
  std::vector<int32_t> blocks;  // ascending
  std::vector<int32_t> pages;   // of PagedRows, one a block
  int64_t rows = 0;
};

/// How many of a sequence's first `visible` rows lie in `blocks` (ascending).
int64_t visible_in(std::span<const int32_t> blocks, int64_t rows_per_block, int64_t visible);

/// Every row's best of its part's blocks. `keys` says where rows are; its page table is not used. Candidate blocks must
/// divide `keys.rows_per_page`. REQUIRES: the parts' rows are those of the questions.
/// Errors: invalid_argument, naming field and value; unsupported on a device other than the CPU.
Result<IndexFindings> scan_blocks(kernels::KernelContext& ctx, const IndexQuestions& questions,
                                  const kernels::PagedRows& keys,
                                  std::span<const HeldBlocks> parts);

/// The `k` best of all, ties to the lower index (docs/decisions/0006), indices ascending, kNoIndex behind the last.
/// `all` is used up. An index may appear once.
void write_best(std::vector<IndexFind>& all, int64_t k, int32_t* out);

/// The candidate pool of a row with `visible` keys, as kernels::candidate_blocks() writes it for a single scan: mask words
/// [0, words). `all` is used up. A block may appear once.
void write_candidates(std::vector<IndexFind>& all, int64_t visible, int64_t columns, int64_t block,
                      int64_t keep, uint32_t* mask, int64_t words);

}  // namespace cedar::engine
