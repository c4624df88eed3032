#include "engine/index_scan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "core/units.h"
#include "kernels/quantize.h"
#include "kernels/topk.h"

namespace cedar::engine {
namespace {

static_assert(kIndexColumnsMultiple == kernels::kQ4xGroup);

/// Scores of a tile of rows stay below this, whatever the context.
constexpr int64_t kScoreTileBytes = int64_t{16} << 20;

/// The held rows of all parts in one numbering that keeps the order of a part's columns.
struct HeldView {
  kernels::PagedRows keys;
  const int32_t* sequences = nullptr;  // [rows] part of a row
  const int64_t* visible = nullptr;    // [rows]
  int64_t columns = 0;                 // most visible of a row
};

HeldView make_view(kernels::KernelContext& ctx, const IndexQuestions& questions,
                   const kernels::PagedRows& keys, std::span<const HeldBlocks> parts) {
  HeldView view;
  view.keys = keys;
  view.keys.max_pages = 1;
  for (const HeldBlocks& part : parts) {
    view.keys.max_pages = std::max(view.keys.max_pages, static_cast<int64_t>(part.pages.size()));
  }
  const auto count = static_cast<int64_t>(parts.size());
  int32_t* table = ctx.arena->allocate<int32_t>(count * view.keys.max_pages);
  int32_t* sequences = ctx.arena->allocate<int32_t>(questions.rows);
  int64_t* visible = ctx.arena->allocate<int64_t>(questions.rows);
  int64_t row = 0;
  for (int64_t i = 0; i < count; ++i) {
    const HeldBlocks& part = parts[static_cast<size_t>(i)];
    std::copy(part.pages.begin(), part.pages.end(), table + i * view.keys.max_pages);
    for (int64_t end = row + part.rows; row < end; ++row) {
      sequences[row] = static_cast<int32_t>(i);
      visible[row] = visible_in(part.blocks, keys.rows_per_page, questions.visible[row]);
      view.columns = std::max(view.columns, visible[row]);
    }
  }
  CEDAR_ASSERT(row == questions.rows,
               std::to_string(row) + " of " + std::to_string(questions.rows));
  view.keys.page_table = table;
  view.sequences = sequences;
  view.visible = visible;
  return view;
}

/// What the kernels chose of a tile of rows.
struct Chosen {
  const float* scores = nullptr;  // [rows, stride]
  int64_t stride = 0;
  const int32_t* best = nullptr;  // [rows, k]
  int64_t k = 0;
  const uint32_t* mask = nullptr;  // [rows, words]; null: no candidate blocks
  int64_t words = 0;
};

class Collector {
 public:
  Collector(const IndexQuestions& questions, std::span<const HeldBlocks> parts,
            const HeldView& view, int64_t k, int64_t blocks_per_row)
      : questions_(questions),
        parts_(parts),
        view_(view),
        best_(static_cast<size_t>(questions.rows * k)),
        blocks_(static_cast<size_t>(questions.rows * blocks_per_row)),
        best_count_(static_cast<size_t>(questions.rows)),
        block_count_(static_cast<size_t>(questions.rows)),
        k_(k),
        blocks_per_row_(blocks_per_row) {}

  /// Row `row` of the questions is row `row - begin` of the tile.
  void take(const Chosen& tile, int64_t begin, int64_t row) {
    const std::vector<int32_t>& blocks = parts_[static_cast<size_t>(view_.sequences[row])].blocks;
    const int64_t rows_per_block = view_.keys.rows_per_page;
    const auto column_of = [&](int64_t held) {
      const int64_t block = blocks[static_cast<size_t>(held / rows_per_block)];
      return static_cast<int32_t>(block * rows_per_block + held % rows_per_block);
    };
    const float* scores = tile.scores + (row - begin) * tile.stride;
    const int32_t* best = tile.best + (row - begin) * tile.k;
    IndexFind* out = best_.data() + row * k_;
    int64_t count = 0;
    for (; count < tile.k && best[count] != kernels::kNoIndex; ++count) {
      out[count] = {scores[best[count]], column_of(best[count])};
    }
    best_count_[static_cast<size_t>(row)] = count;
    if (tile.mask == nullptr) return;
    const uint32_t* mask = tile.mask + (row - begin) * tile.words;
    const int64_t visible = view_.visible[row];
    out = blocks_.data() + row * blocks_per_row_;
    count = 0;
    for (int64_t first = 0; first < visible; first += questions_.candidate_block) {
      if ((mask[first / 32] >> (first % 32) & 1u) == 0) continue;
      const int64_t end = std::min(first + questions_.candidate_block, visible);
      out[count++] = {*std::max_element(scores + first, scores + end),
                      static_cast<int32_t>(column_of(first) / questions_.candidate_block)};
    }
    block_count_[static_cast<size_t>(row)] = count;
  }

  IndexFindings findings() const {
    IndexFindings out;
    for (int64_t row = 0; row < questions_.rows; ++row) {
      const IndexFind* best = best_.data() + row * k_;
      out.best.insert(out.best.end(), best, best + best_count_[static_cast<size_t>(row)]);
      out.best_end.push_back(static_cast<int64_t>(out.best.size()));
      const IndexFind* blocks = blocks_.data() + row * blocks_per_row_;
      out.blocks.insert(out.blocks.end(), blocks, blocks + block_count_[static_cast<size_t>(row)]);
      out.block_end.push_back(static_cast<int64_t>(out.blocks.size()));
    }
    return out;
  }

 private:
  const IndexQuestions& questions_;
  std::span<const HeldBlocks> parts_;
  const HeldView& view_;
  std::vector<IndexFind> best_, blocks_;
  std::vector<int64_t> best_count_, block_count_;
  int64_t k_, blocks_per_row_;
};

/// Moves the `count` best, ties to the lower index, to the front, and drops the rest.
void keep_best(std::vector<IndexFind>& all, int64_t count) {
  const auto better = [](const IndexFind& a, const IndexFind& b) {
    return a.score != b.score ? a.score > b.score : a.index < b.index;
  };
  if (static_cast<int64_t>(all.size()) <= count) return;
  std::nth_element(all.begin(), all.begin() + count, all.end(), better);
  all.resize(static_cast<size_t>(count));
}

Status check(kernels::KernelContext& ctx, const IndexQuestions& questions,
             const kernels::PagedRows& keys) {
  if (ctx.device.kind != DeviceKind::cpu) {
    return make_error(Errc::unsupported, "scans of single blocks are made on the CPU alone");
  }
  if (questions.candidate_block > 0 && keys.rows_per_page % questions.candidate_block != 0) {
    return make_error(Errc::invalid_argument,
                      "candidate_block: " + std::to_string(questions.candidate_block) +
                          " columns do not divide a KV block's " +
                          std::to_string(keys.rows_per_page));
  }
  return {};
}

}  // namespace

int64_t IndexBlockLayout::bytes() const {
  int64_t rows = 0;
  for (const Source& s : sources) rows += s.rows_per_block;
  return rows * row_bytes;
}

const IndexBlockLayout::Source* IndexBlockLayout::find(int32_t source, int64_t& offset) const {
  offset = 0;
  for (const Source& s : sources) {
    if (s.source == source) return &s;
    offset += int64_t{s.rows_per_block} * row_bytes;
  }
  return nullptr;
}

int64_t IndexQuestions::query_bytes() const {
  return heads * kernels::packed_row_bytes(kernels::RowFormat::q4x, columns);
}

IndexQuestions IndexQuestions::slice(int64_t begin, int64_t count) const {
  IndexQuestions out = *this;
  out.packed += begin * query_bytes();
  out.head_weights += begin * heads;
  out.visible += begin;
  out.rows = count;
  return out;
}

int64_t visible_in(std::span<const int32_t> blocks, int64_t rows_per_block, int64_t visible) {
  const auto open = static_cast<int32_t>(visible / rows_per_block);  // the first not wholly visible
  const auto at = std::lower_bound(blocks.begin(), blocks.end(), open);
  const int64_t whole = (at - blocks.begin()) * rows_per_block;
  return at != blocks.end() && *at == open ? whole + visible % rows_per_block : whole;
}

Result<IndexFindings> scan_blocks(kernels::KernelContext& ctx, const IndexQuestions& questions,
                                  const kernels::PagedRows& keys,
                                  std::span<const HeldBlocks> parts) {
  CEDAR_CHECK_OK(check(ctx, questions, keys));
  ArenaScope scope(*ctx.arena);
  const HeldView view = make_view(ctx, questions, keys, parts);
  const int64_t k = std::min(questions.best, view.columns);
  // The kernel pins the newest of these blocks, and chooses all but one. That is enough: the sequence's newest block takes one
  // place in the pool, whoever holds it.
  const int64_t keep = questions.candidate_block == 0 ? 0 : questions.candidate_keep;
  const int64_t blocks_per_row =
      keep == 0 ? 0 : std::min(keep, ceil_div(view.columns, questions.candidate_block));
  Collector collector(questions, parts, view, k, blocks_per_row);
  if (view.columns == 0) return collector.findings();

  Chosen chosen;
  chosen.stride = align_up(view.columns, 16);
  chosen.k = k;
  const int64_t tile =
      std::clamp<int64_t>(kScoreTileBytes / (chosen.stride * int64_t{4}), 1, questions.rows);
  float* scores = ctx.arena->allocate<float>(tile * chosen.stride);
  int32_t* best = ctx.arena->allocate<int32_t>(tile * k);
  chosen.scores = scores;
  chosen.best = best;
  uint32_t* mask = nullptr;
  if (keep > 0) {
    chosen.words = ceil_div(view.columns, 32);
    chosen.mask = mask = ctx.arena->allocate<uint32_t>(tile * chosen.words);
  }
  for (int64_t begin = 0; begin < questions.rows; begin += tile) {
    const IndexQuestions asked = questions.slice(begin, std::min(tile, questions.rows - begin));
    kernels::IndexScoreParams score;
    score.q = asked.packed;
    score.head_weights = asked.head_weights;
    score.head_weight_scale = asked.head_weight_scale;
    score.keys = view.keys;
    score.sequences = view.sequences + begin;
    score.rows_per_sequence = ceil_div(questions.rows, static_cast<int64_t>(parts.size()));
    score.visible = view.visible + begin;
    score.scores = scores;
    score.score_stride = chosen.stride;
    score.rows = asked.rows;
    score.heads = asked.heads;
    score.columns = asked.columns;
    score.mode = asked.mode;
    CEDAR_CHECK_OK(kernels::index_score(ctx, score));
    if (mask != nullptr) {
      kernels::CandidateBlocksParams blocks;
      blocks.scores = scores;
      blocks.score_stride = chosen.stride;
      blocks.visible = view.visible + begin;
      blocks.mask = mask;
      blocks.mask_stride = chosen.words;
      blocks.columns = view.columns;
      blocks.rows = asked.rows;
      blocks.block = questions.candidate_block;
      blocks.keep = keep;
      CEDAR_CHECK_OK(kernels::candidate_blocks(ctx, blocks));
    }
    kernels::TopkParams top;
    top.scores = scores;
    top.score_stride = chosen.stride;
    top.columns = view.columns;
    top.indices = best;
    top.rows = asked.rows;
    top.k = k;
    CEDAR_CHECK_OK(kernels::topk(ctx, top));
    ctx.pool->parallel_for(asked.rows, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) collector.take(chosen, begin, begin + i);
    });
  }
  return collector.findings();
}

void write_best(std::vector<IndexFind>& all, int64_t k, int32_t* out) {
  keep_best(all, k);
  const auto count = static_cast<int64_t>(all.size());
  for (int64_t i = 0; i < count; ++i) out[i] = all[static_cast<size_t>(i)].index;
  std::sort(out, out + count);
  std::fill(out + count, out + k, kernels::kNoIndex);
}

void write_candidates(std::vector<IndexFind>& all, int64_t visible, int64_t columns, int64_t block,
                      int64_t keep, uint32_t* mask, int64_t words) {
  std::fill_n(mask, words, 0u);
  if (visible == 0) return;
  // The newest block is always kept, and counts.
  const auto newest = static_cast<int32_t>((visible - 1) / block);
  std::erase_if(all, [&](const IndexFind& find) { return find.index == newest; });
  all.push_back({std::numeric_limits<float>::infinity(), newest});
  keep_best(all, std::min(keep, ceil_div(columns, block)));
  for (const IndexFind& find : all) {
    const int64_t end = std::min((find.index + int64_t{1}) * block, columns);
    for (int64_t c = find.index * block; c < end; ++c) mask[c / 32] |= 1u << (c % 32);
  }
}

}  // namespace cedar::engine
