#include "actors/index_scan_calls.h"

#include <algorithm>

namespace cedar::actors {
namespace {

using engine::IndexFindings;

/// Rows [begin, begin + rows) of `from` behind those of `to`.
void add_rows(const IndexFindings& from, int64_t begin, int64_t rows, IndexFindings& to) {
  for (int64_t row = begin; row < begin + rows; ++row) {
    const auto best = from.best_of(row);
    to.best.insert(to.best.end(), best.begin(), best.end());
    to.best_end.push_back(static_cast<int64_t>(to.best.size()));
    const auto blocks = from.blocks_of(row);
    to.blocks.insert(to.blocks.end(), blocks.begin(), blocks.end());
    to.block_end.push_back(static_cast<int64_t>(to.blocks.size()));
  }
}

int64_t most_rows(const engine::IndexQuestions& q, int64_t most_bytes) {
  const int64_t request = q.query_bytes() + q.heads * 2 + 8;
  const int64_t reply = (q.best + (q.candidate_block > 0 ? q.candidate_keep : 0)) * 8 + 16;
  return std::max<int64_t>(1, most_bytes / std::max(request, reply));
}

}  // namespace

Bytes ScanCall::message(const engine::IndexQuestions& questions,
                        std::span<const ScanPiece> pieces) const {
  ScanWriter writer(questions);
  for (const Slice& slice : slices) {
    const ScanPiece& piece = pieces[slice.piece];
    writer.add_rows({piece.part, static_cast<int64_t>(piece.blocks.size()), slice.rows}, questions,
                    slice.row_begin);
  }
  return writer.take();
}

std::vector<ScanCall> plan_scan_calls(const engine::IndexQuestions& questions,
                                      std::span<const engine::IndexScanRows> entries,
                                      std::span<const ScanPiece> pieces, int64_t most_bytes) {
  const int64_t limit = most_rows(questions, most_bytes);
  std::vector<ScanCall> calls;
  std::map<HolderId, size_t> open;  // the call of each holder that has room
  for (size_t p = 0; p < pieces.size(); ++p) {
    const engine::IndexScanRows& entry = entries[pieces[p].entry];
    for (int64_t done = 0; done < entry.rows;) {
      auto [at, fresh] = open.try_emplace(pieces[p].holder, calls.size());
      if (fresh || static_cast<int64_t>(calls[at->second].visible.size()) == limit) {
        at->second = calls.size();
        calls.emplace_back().holder = pieces[p].holder;
      }
      ScanCall& call = calls[at->second];
      const int64_t rows =
          std::min(entry.rows - done, limit - static_cast<int64_t>(call.visible.size()));
      const int64_t begin = entry.row_begin + done;
      call.slices.push_back({p, begin, rows});
      call.visible.insert(call.visible.end(), questions.visible + begin,
                          questions.visible + begin + rows);
      done += rows;
    }
  }
  return calls;
}

std::vector<engine::IndexScan::Answer> join_replies(const engine::IndexQuestions& questions,
                                                    std::span<ScanPiece> pieces,
                                                    std::span<const ScanCall> calls,
                                                    std::span<Result<Bytes>> replies) {
  std::vector<engine::IndexScan::Answer> answers(pieces.size());
  for (size_t p = 0; p < pieces.size(); ++p) {
    answers[p].entry = pieces[p].entry;
    answers[p].blocks = std::move(pieces[p].blocks);
    answers[p].findings.emplace();
  }
  for (size_t c = 0; c < calls.size(); ++c) {
    Result<IndexFindings> found = make_error(Errc::unavailable, "no reply");
    if (replies[c]) {
      found = parse_findings(*replies[c], questions, calls[c].visible);
      if (!found) replies[c] = found.error();
    }
    int64_t row = 0;
    for (const ScanCall::Slice& slice : calls[c].slices) {
      std::optional<IndexFindings>& of_piece = answers[slice.piece].findings;
      if (!found) {
        of_piece.reset();
      } else if (of_piece) {
        add_rows(*found, row, slice.rows, *of_piece);
      }
      row += slice.rows;
    }
  }
  return answers;
}

}  // namespace cedar::actors
