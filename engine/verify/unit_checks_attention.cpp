// Sinkhorn, sparse attention and the candidate pool on random input.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/units.h"
#include "engine/verify/unit_checks.h"
#include "kernels/hyper_connection.h"
#include "kernels/quantize.h"
#include "kernels/sparse_attention.h"
#include "kernels/topk.h"

namespace cedar::engine::verify {
namespace {

void check_sinkhorn(Session& session, GoldenFile& file) {
  const int64_t n = session.config().hc_mult;
  const int64_t outputs = 2 * n + n * n;
  const TensorView* mixes = file.tensor("sinkhorn.mixes", DType::f32, {kAny, outputs});
  const TensorView* base = file.tensor("sinkhorn.base", DType::f32, {outputs});
  const TensorView* scale = file.tensor("sinkhorn.scale", DType::f32, {3});
  if (mixes == nullptr || base == nullptr || scale == nullptr) return;
  const int64_t rows = mixes->shape[0];
  std::vector<float> pre(static_cast<size_t>(rows * n)), post(pre.size());
  std::vector<float> mix(static_cast<size_t>(rows * n * n));
  for (int64_t row = 0; row < rows; ++row) {
    kernels::hc_split(mixes->as<float>().data() + row * outputs, base->as<float>().data(),
                      scale->as<float>().data(), n, session.config().hc_eps,
                      session.config().hc_sinkhorn_iters, pre.data() + row * n,
                      post.data() + row * n, mix.data() + row * n * n);
  }
  const auto compare = [&](const char* name, const std::vector<float>& found,
                           const std::vector<int64_t>& shape) {
    const TensorView* expected = file.tensor(name, DType::f32, shape);
    if (expected != nullptr) {
      session.report().check(kSinkhorn, relative_l2(found, floats(*expected)), name);
    }
  };
  compare("sinkhorn.pre", pre, {rows, n});
  compare("sinkhorn.post", post, {rows, n});
  compare("sinkhorn.comb", mix, {rows, n, n});
}

/// A bf16 row as the sum of two Q8 rows side by side, [2 * columns]. A bf16 number has 8 significant bits and
/// an E4M3 code 4, so the second half holds what the first one rounded away; what both lose lies below 2^-20
/// of the group's largest element.
void split_row(const Bf16* row, int64_t columns, uint8_t* packed) {
  std::vector<Bf16> halves(row, row + columns);
  std::vector<uint8_t> coarse_row(
      static_cast<size_t>(kernels::packed_row_bytes(kernels::RowFormat::q8, columns)));
  std::vector<Bf16> coarse(static_cast<size_t>(columns));
  kernels::quantize_row(kernels::RowFormat::q8, row, columns, coarse_row.data());
  kernels::dequantize_row(kernels::RowFormat::q8, coarse_row.data(), columns, coarse.data());
  for (int64_t c = 0; c < columns; ++c) {
    const auto i = static_cast<size_t>(c);
    halves[i] = coarse[i];
    halves.push_back(Bf16(static_cast<float>(row[c]) - static_cast<float>(coarse[i])));
  }
  kernels::quantize_row(kernels::RowFormat::q8, halves.data(), 2 * columns, packed);
}

/// The unit's keys are plain bf16, which no cache holds. Each key becomes two Q8 halves in a head of twice
/// the size, every query is repeated, and the two halves of the output are added: the same attention through
/// the path that serves, packed rows included.
Result<std::vector<float>> attend_lists(Session& session, const TensorView& q, const TensorView& kv,
                                        const TensorView& sink, const TensorView& lists) {
  const int64_t rows = q.shape[1], heads = q.shape[2], dim = q.shape[3];
  const int64_t width = lists.shape[2];
  kernels::KernelContext& ctx = session.ctx();
  const int64_t row_bytes = kernels::packed_row_bytes(kernels::RowFormat::q8, 2 * dim);
  std::vector<kernels::WindowSpan> spans;
  std::vector<uint8_t> chunk;
  for (int64_t row = 0; row < rows; ++row) {
    kernels::WindowSpan span;
    span.chunk_begin = static_cast<int32_t>(std::ssize(chunk) / row_bytes);
    for (int64_t i = 0; i < width; ++i) {
      const int32_t entry = lists.as<int32_t>()[static_cast<size_t>(row * width + i)];
      if (entry < 0) continue;
      if (entry >= kv.shape[1]) {
        return make_error(Errc::invalid_argument, "sparse_attn.idxs: " + std::to_string(entry));
      }
      chunk.resize(chunk.size() + static_cast<size_t>(row_bytes));
      split_row(kv.as<Bf16>().data() + entry * dim, dim,
                chunk.data() + std::ssize(chunk) - row_bytes);
    }
    span.chunk_end = static_cast<int32_t>(std::ssize(chunk) / row_bytes);
    spans.push_back(span);
  }
  std::vector<Bf16> queries;
  for (int64_t i = 0; i < rows * heads; ++i) {
    const Bf16* head = q.as<Bf16>().data() + i * dim;
    for (int copy = 0; copy < 2; ++copy) queries.insert(queries.end(), head, head + dim);
  }
  Bf16* o = ctx.arena->allocate<Bf16>(rows * heads * 2 * dim);
  kernels::SparseAttentionParams p;
  p.q = upload(ctx, queries);
  p.sink = input<float>(ctx, sink);
  p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
  p.window = upload(ctx, spans);
  p.chunk_rows = upload(ctx, chunk);
  p.o = o;
  p.rows = rows;
  p.heads = heads;
  p.head_dim = 2 * dim;
  CEDAR_CHECK_OK(kernels::sparse_attention(ctx, p));
  const std::vector<Bf16> halves = output(ctx, o, rows * heads * 2 * dim);
  std::vector<float> out;
  for (int64_t i = 0; i < rows * heads; ++i) {
    for (int64_t c = 0; c < dim; ++c) {
      const Bf16* head = halves.data() + i * 2 * dim;
      out.push_back(round_to_bf16(static_cast<float>(head[c]) + static_cast<float>(head[dim + c])));
    }
  }
  return out;
}

void check_sparse_attention(Session& session, GoldenFile& file) {
  const int64_t heads = session.config().num_attention_heads;
  const int64_t dim = session.config().head_dim;
  const TensorView* q = file.tensor("sparse_attn.q", DType::bf16, {1, kAny, heads, dim});
  const TensorView* kv = file.tensor("sparse_attn.kv", DType::bf16, {1, kAny, dim});
  const TensorView* sink = file.tensor("sparse_attn.sink", DType::f32, {heads});
  if (q == nullptr || kv == nullptr || sink == nullptr) return;
  const int64_t rows = q->shape[1];
  const TensorView* lists = file.tensor("sparse_attn.idxs", DType::i32, {1, rows, kAny});
  const TensorView* out = file.tensor("sparse_attn.out", DType::bf16, {1, rows, heads, dim});
  if (lists == nullptr || out == nullptr) return;
  ArenaScope scope(*session.ctx().arena);
  const auto found = attend_lists(session, *q, *kv, *sink, *lists);
  Report& report = session.report();
  if (!found) return report.fail(kSparseAttention, "sparse_attn", found.error());
  report.check(kSparseAttention, relative_l2(*found, floats(*out)), "sparse_attn.out");
  report.check(kSparseAttentionSteps, worst_bf16_steps(*found, floats(*out), dim),
               "sparse_attn.out");
}

struct PoolSize {
  int64_t keep = 0;
  int64_t block = 0;
};

/// "4x8": keep 4 blocks of 8 columns.
std::optional<PoolSize> pool_size(std::string_view text) {
  PoolSize out;
  const char* end = text.data() + text.size();
  const auto [middle, first] = std::from_chars(text.data(), end, out.keep);
  if (first != std::errc() || middle == end || *middle != 'x') return std::nullopt;
  const auto [rest, second] = std::from_chars(middle + 1, end, out.block);
  const bool good = second == std::errc() && rest == end && out.keep > 0 && out.block > 0;
  return good ? std::optional(out) : std::nullopt;
}

void check_pool(Session& session, GoldenFile& file, const std::string& name, PoolSize size) {
  const TensorView* logits = file.tensor("candidates.logits", DType::f32, {kAny, kAny});
  if (logits == nullptr) return;
  const int64_t rows = logits->shape[0], columns = logits->shape[1];
  const TensorView* lengths = file.tensor("candidates.lens", DType::i32, {rows});
  const TensorView* keep = file.tensor(name, DType::boolean, {rows, columns});
  if (lengths == nullptr || keep == nullptr) return;
  const std::vector<int64_t> visible = integers(*lengths);
  std::vector<float> scores = floats(*logits);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = visible[static_cast<size_t>(row)]; c < columns; ++c) {
      scores[static_cast<size_t>(row * columns + c)] = -std::numeric_limits<float>::infinity();
    }
  }
  const int64_t words = ceil_div(columns, 32);
  kernels::KernelContext& ctx = session.ctx();
  ArenaScope scope(*ctx.arena);
  kernels::CandidateBlocksParams p;
  p.scores = upload(ctx, scores);
  p.score_stride = columns;
  p.visible = upload(ctx, visible);
  p.mask = ctx.arena->allocate<uint32_t>(rows * words);
  p.mask_stride = words;
  p.columns = columns;
  p.rows = rows;
  p.block = size.block;
  p.keep = size.keep;
  if (Status status = kernels::candidate_blocks(ctx, p); !status) {
    return session.report().fail(kCandidateUnit, name, status.error());
  }
  const std::vector<uint32_t> mask = output(ctx, p.mask, rows * words);
  session.report().check(kCandidateUnit,
                         count_different(pool_rows(mask, words, rows, columns), integers(*keep)),
                         name);
}

}  // namespace

void check_attention_units(Session& session, GoldenFile& file) {
  constexpr std::string_view kKeep = "candidates.keep_";
  check_sinkhorn(session, file);
  check_sparse_attention(session, file);
  for (const std::string& name : file.names()) {
    if (!name.starts_with(kKeep)) continue;
    const auto size = pool_size(std::string_view(name).substr(kKeep.size()));
    if (size) check_pool(session, file, name, *size);
  }
}

}  // namespace cedar::engine::verify
