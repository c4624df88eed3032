#include "engine/sharded_selection.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/units.h"
#include "engine/index_scan.h"
#include "engine/sharded_keys.h"

namespace cedar::engine {
namespace {

/// Findings about rows [row_begin, row_begin + their rows) of the batch.
struct Piece {
  IndexFindings findings;
  int64_t row_begin = 0;
};

int64_t rows_of(const StepBatch& batch, size_t sequence) {
  return batch.sequences[sequence].rows();
}

std::vector<IndexScanRows> spread_rows(const SelectionInput& in, std::vector<size_t>& sequences) {
  std::vector<IndexScanRows> entries;
  for (size_t s = 0; s < in.batch->sequences.size(); ++s) {
    const IndexSequence* sequence = in.sharded->find(in.batch->sequences[s].slot);
    if (sequence == nullptr) continue;
    entries.push_back({*sequence, in.batch->row_begin[s], rows_of(*in.batch, s)});
    sequences.push_back(s);
  }
  return entries;
}

void add_block(const StepBatch& batch, size_t sequence, int32_t block, HeldBlocks& held) {
  held.blocks.push_back(block);
  held.pages.push_back(batch.page_table[static_cast<int64_t>(sequence) * batch.max_pages + block]);
}

/// What nobody else was asked for.
std::vector<HeldBlocks> own_blocks(const SelectionInput& in, const std::vector<size_t>& sequences,
                                   const IndexScan& scan) {
  const StepBatch& batch = *in.batch;
  std::vector<HeldBlocks> parts(batch.sequences.size());
  size_t entry = 0;
  for (size_t s = 0; s < parts.size(); ++s) {
    std::span<const int32_t> asked;
    if (entry < sequences.size() && sequences[entry] == s) asked = scan.asked(entry++);
    const std::vector<int64_t>& visible = batch.ratio(in.plan->ratio).visible_host;
    // Positions ascend, and with them what is visible.
    const int64_t most = visible[static_cast<size_t>(batch.row_begin[s] + rows_of(batch, s) - 1)];
    const auto blocks = static_cast<int32_t>(ceil_div(most, in.keys.rows_per_page));
    for (int32_t block = 0; block < blocks; ++block) {
      if (!asked.empty() && asked.front() == block) {
        asked = asked.subspan(1);
      } else {
        add_block(batch, s, block, parts[s]);
      }
    }
    parts[s].rows = rows_of(batch, s);
  }
  return parts;
}

}  // namespace

bool any_sharded(const SelectionInput& in) {
  if (in.sharded == nullptr) return false;
  const auto& sequences = in.batch->sequences;
  return std::any_of(sequences.begin(), sequences.end(), [&](const BatchSequence& sequence) {
    return in.sharded->find(sequence.slot) != nullptr;
  });
}

Status select_sharded(kernels::KernelContext& ctx, const SelectionInput& in,
                      const IndexQuestions& questions) {
  const StepBatch& batch = *in.batch;
  std::vector<size_t> sequences;
  const std::vector<IndexScanRows> entries = spread_rows(in, sequences);
  const std::unique_ptr<IndexScan> scan = in.sharded->service().scan(questions, entries);
  std::vector<Piece> pieces(1);
  CEDAR_TRY(pieces.front().findings,
            scan_blocks(ctx, questions, in.keys, own_blocks(in, sequences, *scan)));
  std::vector<std::vector<size_t>> of_sequence(batch.sequences.size(), {0});
  for (IndexScan::Answer& answer : scan->collect()) {
    const IndexScanRows& entry = entries[answer.entry];
    if (!answer.findings) {
      HeldBlocks missing;
      missing.rows = entry.rows;
      for (const int32_t block : answer.blocks) {
        add_block(batch, sequences[answer.entry], block, missing);
      }
      CEDAR_TRY(answer.findings, scan_blocks(ctx, questions.slice(entry.row_begin, entry.rows),
                                             in.keys, {&missing, 1}));
    }
    of_sequence[sequences[answer.entry]].push_back(pieces.size());
    pieces.push_back({std::move(*answer.findings), entry.row_begin});
  }

  const SelectionStorage& out = in.storage;
  const int64_t columns = batch.ratio(in.plan->ratio).max_visible;
  ctx.pool->parallel_for(batch.rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<IndexFind> found;
    for (int64_t row = begin; row < end; ++row) {
      const auto& sources = of_sequence[static_cast<size_t>(batch.row_sequence[row])];
      found.clear();
      for (const size_t i : sources) {
        const auto best = pieces[i].findings.best_of(row - pieces[i].row_begin);
        found.insert(found.end(), best.begin(), best.end());
      }
      write_best(found, out.k, out.indices + row * out.k);
      if (out.mask == nullptr) continue;
      found.clear();
      for (const size_t i : sources) {
        const auto blocks = pieces[i].findings.blocks_of(row - pieces[i].row_begin);
        found.insert(found.end(), blocks.begin(), blocks.end());
      }
      write_candidates(found, questions.visible[row], columns, questions.candidate_block,
                       questions.candidate_keep, out.mask + row * out.stride, out.stride);
    }
  });
  return {};
}

}  // namespace cedar::engine
