// Two passes over the chosen experts, each parallel over (expert, tile of 32 outputs), so that one token's few
// experts keep all threads busy and many tokens share every decoded weight:
//   1. hidden = Q8(bf16(silu(w1 x) * w3 x * weight)); a tile of outputs is exactly one quantiser group.
//   2. y tile = sum over experts in increasing id of bf16(w2 hidden), the shared expert last.

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/units.h"
#include "kernels/cpu/linear_ops.h"
#include "kernels/cpu/tile_rows.h"

namespace cedar::kernels::cpu {
namespace {

/// The rows of one expert, in increasing row number.
struct Segment {
  const ExpertWeights* expert = nullptr;
  std::span<const int32_t> rows;
  std::span<const float> weights;
  std::span<const uint16_t*> x;       // input rows
  std::span<const uint16_t*> hidden;  // [rows] of the expert's inner width
  int64_t first_task = 0;             // in pass 1
};

/// A counting sort of the assignments by expert; the shared expert, if any, is the last segment.
class Grouping {
 public:
  Grouping(KernelContext& ctx, const MoeExpertsParams& p, std::span<const uint16_t* const> x) {
    const int64_t assignments = p.rows * p.top;
    const int64_t total = assignments + (p.shared != nullptr ? p.rows : 0);
    auto* rows = ctx.arena->allocate<int32_t>(total);
    auto* weights = ctx.arena->allocate<float>(total);
    auto* inputs = ctx.arena->allocate<const uint16_t*>(total);
    auto* hidden = ctx.arena->allocate<const uint16_t*>(total);

    std::vector<int64_t> next(p.routed.size() + 1, 0);
    for (int64_t i = 0; i < assignments; ++i) ++next[static_cast<size_t>(p.experts[i]) + 1];
    for (size_t e = 1; e < next.size(); ++e) next[e] += next[e - 1];
    const std::vector<int64_t> begin = next;
    for (int64_t i = 0; i < assignments; ++i) {
      const int64_t at = next[static_cast<size_t>(p.experts[i])]++;
      rows[at] = static_cast<int32_t>(i / p.top);
      weights[at] = p.weights[i];
    }
    for (int64_t row = 0; row < total - assignments; ++row) {
      rows[assignments + row] = static_cast<int32_t>(row);
      weights[assignments + row] = 1.0f;
    }
    for (int64_t i = 0; i < total; ++i) inputs[i] = x[static_cast<size_t>(rows[i])];

    const auto add = [&](const ExpertWeights& expert, int64_t from, int64_t to) {
      if (from == to) return;
      const auto count = static_cast<size_t>(to - from);
      const int64_t inner = expert.w1.out;
      auto* wide = ctx.arena->allocate<uint16_t>((to - from) * inner);
      for (int64_t i = from; i < to; ++i) hidden[i] = wide + (i - from) * inner;
      segments_.push_back({&expert,
                           {rows + from, count},
                           {weights + from, count},
                           {inputs + from, count},
                           {hidden + from, count},
                           tasks_});
      tasks_ += tile_count(expert.w1);
    };
    for (size_t e = 0; e < p.routed.size(); ++e) add(p.routed[e], begin[e], begin[e + 1]);
    if (p.shared != nullptr) add(*p.shared, assignments, total);
  }

  std::span<const Segment> segments() const { return segments_; }
  int64_t tasks() const { return tasks_; }
  const Segment& segment_of(int64_t task) const {
    const auto after = std::upper_bound(
        segments_.begin(), segments_.end(), task,
        [](int64_t value, const Segment& segment) { return value < segment.first_task; });
    return *(after - 1);
  }

 private:
  std::vector<Segment> segments_;
  int64_t tasks_ = 0;
};

/// Calls fn(first, count) for each block of rows that shares one decoding of a weight.
template <class Fn>
void for_row_blocks(size_t rows, const Fn& fn) {
  for (size_t first = 0; first < rows; first += kRowBlock) {
    fn(first, std::min<size_t>(kRowBlock, rows - first));
  }
}

/// Columns [tile * 32, tile * 32 + 32) of the segment's hidden rows.
void hidden_tile(const IsaKernels& isa, const Segment& segment, int64_t tile, float clamp) {
  alignas(64) float gate[kRowBlock * kTileOut];
  alignas(64) float up[kRowBlock * kTileOut];
  for_row_blocks(segment.rows.size(), [&](size_t first, size_t count) {
    tile_rows(isa, segment.expert->w1, tile, segment.x.subspan(first, count), gate);
    tile_rows(isa, segment.expert->w3, tile, segment.x.subspan(first, count), up);
    for (size_t i = 0; i < count; ++i) {
      auto* out = const_cast<uint16_t*>(segment.hidden[first + i]) + tile * kTileOut;
      isa.gated_q8(gate + i * kTileOut, up + i * kTileOut, clamp, segment.weights[first + i], out);
    }
  });
}

/// sums [rows, 32] of one tile of outputs.
void output_tile(const IsaKernels& isa, std::span<const Segment> segments, int64_t tile,
                 float* sums) {
  alignas(64) float acc[kRowBlock * kTileOut];
  for (const Segment& segment : segments) {
    for_row_blocks(segment.rows.size(), [&](size_t first, size_t count) {
      tile_rows(isa, segment.expert->w2, tile, segment.hidden.subspan(first, count), acc);
      for (size_t i = 0; i < count; ++i) {
        isa.add_rounded(acc + i * kTileOut, sums + segment.rows[first + i] * kTileOut);
      }
    });
  }
}

}  // namespace

Status moe_experts(KernelContext& ctx, const MoeExpertsParams& p) {
  const ArenaScope scope(*ctx.arena);
  const IsaKernels& isa = isa_kernels(ctx.isa);
  const std::span<const uint16_t* const> x = widen_rows(ctx, isa, p.xq, p.rows, p.d);
  const Grouping grouping(ctx, p, x);
  const std::span<const Segment> segments = grouping.segments();

  const PackedWeight& any = (p.shared != nullptr ? *p.shared : p.routed.front()).w1;
  const int64_t mean_rows = ceil_div(p.rows * (p.top + 1), static_cast<int64_t>(segments.size()));
  ctx.pool->parallel_for(grouping.tasks(), tile_grain(any, 2 * mean_rows),
                         [&](int64_t begin, int64_t end) {
                           for (int64_t task = begin; task < end; ++task) {
                             const Segment& segment = grouping.segment_of(task);
                             hidden_tile(isa, segment, task - segment.first_task, p.clamp);
                           }
                         });

  const int64_t tiles = ceil_div(p.d, kTileOut);
  auto* sums = ctx.arena->allocate<float>(tiles * p.rows * kTileOut);
  ctx.pool->parallel_for(tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      float* tile_sums = sums + tile * p.rows * kTileOut;
      std::memset(tile_sums, 0, static_cast<size_t>(p.rows * kTileOut) * sizeof *tile_sums);
      output_tile(isa, segments, tile, tile_sums);
      const int64_t column = tile * kTileOut;
      for (int64_t row = 0; row < p.rows; ++row) {
        isa.store_bf16(tile_sums + row * kTileOut, std::min(kTileOut, p.d - column),
                       bf16_bits(p.y + row * p.d + column));
      }
    }
  });
  return {};
}

}  // namespace cedar::kernels::cpu
