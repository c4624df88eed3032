#include "engine/verify/selection.h"

#include <algorithm>
#include <limits>

#include "core/units.h"
#include "engine/verify/engram_sources.h"
#include "kernels/topk.h"

namespace cedar::engine::verify {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void note_ties(Report& report, const Kind& kind, const std::string& what, int64_t rows,
               double steps) {
  report.note(kind, what + ": " + std::to_string(rows) +
                        (steps == 0 ? " rows choose differently among equal scores at the cut"
                                    : " rows choose differently among scores within two bf16 "
                                      "steps"));
}

}  // namespace

Lists block_lists(const std::vector<int64_t>& pool, int64_t rows, int64_t columns, int64_t block) {
  Lists out;
  out.width = ceil_div(columns, block);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t b = 0; b < out.width; ++b) {
      // A kept block holds all its columns, its first one too.
      out.entries.push_back(pool[static_cast<size_t>(row * columns + b * block)] != 0 ? b : -1);
    }
  }
  return out;
}

std::vector<float> block_scores(const Scores& scores, int64_t rows, int64_t columns,
                                int64_t block) {
  std::vector<float> out;
  for (int64_t row = 0; row < rows; ++row) {
    const float* values = scores.values + row * scores.stride;
    for (int64_t begin = 0; begin < columns; begin += block) {
      out.push_back(*std::max_element(values + begin, values + std::min(begin + block, columns)));
    }
  }
  return out;
}

Result<Lists> topk_of(kernels::KernelContext& ctx, const float* scores, int64_t rows,
                      int64_t columns, int64_t k, const std::vector<uint32_t>& pool) {
  ArenaScope scope(*ctx.arena);
  kernels::TopkParams p;
  p.scores = upload(ctx, std::span(scores, static_cast<size_t>(rows * columns)));
  p.score_stride = columns;
  p.columns = columns;
  p.mask = pool.empty() ? nullptr : upload(ctx, pool);
  p.mask_stride = ceil_div(columns, 32);
  p.indices = ctx.arena->allocate<int32_t>(rows * k);
  p.rows = rows;
  p.k = k;
  CEDAR_CHECK_OK(kernels::topk(ctx, p));
  const std::vector<int32_t> indices = output(ctx, p.indices, rows * k);
  return Lists{std::vector<int64_t>(indices.begin(), indices.end()), k};
}

Result<std::vector<uint32_t>> pool_of(kernels::KernelContext& ctx, const model::ModelConfig& config,
                                      const float* scores, const std::vector<int64_t>& visible,
                                      int64_t columns) {
  const auto rows = static_cast<int64_t>(visible.size());
  const int64_t words = ceil_div(columns, 32);
  ArenaScope scope(*ctx.arena);
  kernels::CandidateBlocksParams p;
  p.scores = upload(ctx, std::span(scores, static_cast<size_t>(rows * columns)));
  p.score_stride = columns;
  p.visible = upload(ctx, visible);
  p.mask = ctx.arena->allocate<uint32_t>(rows * words);
  p.mask_stride = words;
  p.columns = columns;
  p.rows = rows;
  p.block = config.candidate_block_size;
  p.keep = config.candidate_topk_blocks;
  CEDAR_CHECK_OK(kernels::candidate_blocks(ctx, p));
  return output(ctx, p.mask, rows * words);
}

std::vector<uint32_t> pool_words(const std::vector<int64_t>& allowed, int64_t columns) {
  const int64_t words = ceil_div(columns, 32);
  const auto rows = columns == 0 ? 0 : std::ssize(allowed) / columns;
  std::vector<uint32_t> mask(static_cast<size_t>(rows * words));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < columns; ++c) {
      if (allowed[static_cast<size_t>(row * columns + c)] != 0) {
        mask[static_cast<size_t>(row * words + c / 32)] |= 1U << (c % 32);
      }
    }
  }
  return mask;
}

void check_lists(Report& report, const Kind& kind, const std::string& what, const Lists& found,
                 const Lists& expected, const Scores& scores, double steps) {
  if (found.width != expected.width || found.entries.size() != expected.entries.size()) {
    return report.fail(kind, what,
                       "lists of " + std::to_string(found.width) + " entries, recorded are " +
                           std::to_string(expected.width));
  }
  const ListDifference d = compare_lists(found, expected, scores, steps);
  report.check(kind, static_cast<double>(d.unexcused), what,
               std::to_string(d.differing) + " of " + std::to_string(d.entries) +
                   " entries differ in " + std::to_string(d.rows) + " rows");
  if (d.rows > d.unexcused) note_ties(report, kind, what, d.rows - d.unexcused, steps);
}

void check_pools(Report& report, const Kind& kind, const std::string& what,
                 const std::vector<int64_t>& found, const std::vector<int64_t>& expected,
                 int64_t columns, int64_t block, const Scores& scores, double steps) {
  const double different = count_different(found, expected);
  if (different == 0) return report.check(kind, 0, what);
  if (found.size() != expected.size()) return report.fail(kind, what, "pools of another size");
  const int64_t rows = std::ssize(expected) / columns;
  const std::vector<float> best = block_scores(scores, rows, columns, block);
  const Lists kept = block_lists(expected, rows, columns, block);
  const ListDifference d = compare_lists(block_lists(found, rows, columns, block), kept,
                                         Scores{best.data(), kept.width}, steps);
  // Equal blocks but other columns: the pool is no union of blocks.
  const double wrong = d.rows == 0 ? different : static_cast<double>(d.unexcused);
  report.check(kind, wrong, what,
               std::to_string(d.differing) + " of " + std::to_string(d.entries) +
                   " blocks differ in " + std::to_string(d.rows) + " rows");
  if (d.rows > d.unexcused) note_ties(report, kind, what, d.rows - d.unexcused, steps);
}

std::vector<std::vector<uint32_t>> allowed_pools(const model::ModelConfig& config,
                                                 const float* scores, int64_t columns) {
  const int64_t block = config.candidate_block_size;
  std::vector<float> best = block_scores(Scores{scores, columns}, 1, columns, block);
  best.back() = kInfinity;  // the newest block is always kept
  std::vector<float> sorted = best;
  const int64_t keep = std::min(config.candidate_topk_blocks, std::ssize(best));
  std::nth_element(sorted.begin(), sorted.begin() + (keep - 1), sorted.end(), std::greater<>());
  const float cut = sorted[static_cast<size_t>(keep - 1)];
  std::vector<int64_t> kept, tied;
  for (int64_t b = 0; b < std::ssize(best); ++b) {
    const float score = best[static_cast<size_t>(b)];
    if (score > cut) kept.push_back(b);
    if (score == cut && cut > -kInfinity) tied.push_back(b);
  }
  const auto places = std::min(keep - std::ssize(kept), std::ssize(tied));
  std::vector<bool> chosen(tied.size());
  std::fill_n(chosen.begin(), places, true);
  std::vector<std::vector<uint32_t>> out;
  do {
    std::vector<int64_t> allowed(static_cast<size_t>(columns), 0);
    const auto allow = [&](int64_t b) {
      for (int64_t c = b * block; c < std::min((b + 1) * block, columns); ++c) {
        allowed[static_cast<size_t>(c)] = 1;
      }
    };
    for (int64_t b : kept) allow(b);
    for (size_t i = 0; i < tied.size(); ++i) {
      if (chosen[i]) allow(tied[i]);
    }
    out.push_back(pool_words(allowed, columns));
  } while (out.size() < kMostPools && std::prev_permutation(chosen.begin(), chosen.end()));
  return out;
}

std::vector<int64_t> visible_rows(int64_t rows, int64_t ratio) {
  std::vector<int64_t> out;
  for (int64_t position = 0; position < rows; ++position) out.push_back((position + 1) / ratio);
  return out;
}

Result<std::vector<int64_t>> engram_row_ids(Session& session, const std::vector<TokenId>& tokens) {
  const model::ModelConfig& config = session.config();
  RecordedRows recorded(session.runner().engram());
  CEDAR_TRY(const std::unique_ptr<Frame> frame, Frame::open(session, tokens, &recorded));
  const auto rows = static_cast<int64_t>(tokens.size());
  const std::vector<Bf16> zero(static_cast<size_t>(rows * config.hc_mult * config.hidden_size));
  for (LayerId layer : config.engram_layer_ids) {
    Bf16* state = upload(frame->ctx(), zero);
    CEDAR_CHECK_OK(frame->forward.engram(layer, frame->batch, state));
  }
  const int64_t columns = session.model().engram.columns;
  std::vector<int64_t> out;
  for (int64_t row = 0; row < rows; ++row) {
    for (LayerId layer : config.engram_layer_ids) {
      const auto begin = recorded.rows[layer].begin() + row * columns;
      out.insert(out.end(), begin, begin + columns);
    }
  }
  return out;
}

}  // namespace cedar::engine::verify
