// Rows of one sequence share key tiles: a tile is expanded once and scored against all of them.

#include <algorithm>
#include <limits>

#include "core/units.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/row_context.h"

namespace cedar::kernels::cpu {
namespace {

/// Consecutive rows of one sequence, and where their tiles start in the numbering of all tiles.
struct Group {
  int64_t first_row = 0;
  int64_t row_count = 0;
  int64_t visible = 0;  // the largest of the rows
  int64_t first_tile = 0;
};

/// Unpacks one row's queries into `codes`, `bias`, `scale` and `weights`, laid out as IndexQueryRow says.
struct QueryStorage {
  int8_t* codes;
  int32_t* bias;
  float* scale;
  float* weights;
};

void expand_query(const IndexScoreParams& p, int64_t row, const QueryStorage& out) {
  constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const int64_t groups = p.columns / kQ4xGroup;
  const int64_t row_bytes = packed_row_bytes(RowFormat::q4x, p.columns);
  for (int64_t h = 0; h < p.heads; ++h) {
    const uint8_t* packed = p.q + (row * p.heads + h) * row_bytes;
    int8_t* codes = out.codes + h * p.columns;
    for (int64_t g = 0; g < groups; ++g) {
      int32_t sum = 0;
      // Four packed bytes become a word of even elements and a word of odd ones.
      for (int64_t b = 0; b < kQ4xGroup / 2; ++b) {
        const uint8_t byte = packed[g * kQ4xGroup / 2 + b];
        const int8_t even = kTwice[byte & 15];
        const int8_t odd = kTwice[byte >> 4];
        int8_t* word = codes + g * kQ4xGroup + b / 4 * 8;
        word[b % 4] = even;
        word[b % 4 + 4] = odd;
        sum += even + odd;
      }
      out.bias[h * groups + g] = -12 * sum;
      out.scale[h * groups + g] = 0.25f * e8m0_to_float(packed[p.columns / 2 + g]);
    }
    out.weights[h] = static_cast<float>(p.head_weights[row * p.heads + h]) * p.head_weight_scale;
  }
}

IndexQueryRow* expand_queries(KernelContext& ctx, const IndexScoreParams& p) {
  const int64_t groups = p.heads * (p.columns / kQ4xGroup);
  IndexQueryRow* rows = ctx.arena->allocate<IndexQueryRow>(p.rows);
  int8_t* codes = ctx.arena->allocate<int8_t>(p.rows * p.heads * p.columns);
  int32_t* bias = ctx.arena->allocate<int32_t>(p.rows * groups);
  float* scale = ctx.arena->allocate<float>(p.rows * groups);
  float* weights = ctx.arena->allocate<float>(p.rows * p.heads);
  ctx.pool->parallel_for(p.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const QueryStorage out{codes + i * p.heads * p.columns, bias + i * groups, scale + i * groups,
                             weights + i * p.heads};
      expand_query(p, i, out);
      rows[i] = {.codes = out.codes,
                 .bias = out.bias,
                 .scale = out.scale,
                 .weights = out.weights,
                 .visible = p.visible[i],
                 .scores = p.scores + i * p.score_stride};
    }
  });
  return rows;
}

/// Fills `groups` (room for p.rows) and returns how many there are; `tiles` receives the number of tiles.
int64_t group_rows(const IndexScoreParams& p, Group* groups, int64_t& tiles) {
  int64_t count = 0;
  tiles = 0;
  for (int64_t i = 0; i < p.rows;) {
    Group g;
    g.first_row = i;
    for (; i < p.rows && p.sequences[i] == p.sequences[g.first_row]; ++i) {
      g.visible = std::max(g.visible, p.visible[i]);
    }
    g.row_count = i - g.first_row;
    g.first_tile = tiles;
    tiles += ceil_div(g.visible, kIndexTile);
    groups[count++] = g;
  }
  return count;
}

}  // namespace

Status index_query(KernelContext& ctx, const IndexQueryParams& p) {
  const RowKernels& k = row_kernels(ctx);
  const int64_t pairs = p.rotary_dim / 2;
  const int64_t packed_bytes = packed_row_bytes(RowFormat::q4x, p.columns);
  const int64_t head_bytes = align_up(p.columns * 2, Buffer::kAlignment);
  ArenaScope scope(*ctx.arena);
  WorkerScratch scratch(ctx, head_bytes + p.rotary_dim * 4);
  ctx.pool->parallel_for(p.rows, 1, [&](int64_t begin, int64_t end) {
    const WorkerScratch::Lease lease(scratch);
    Bf16* head = reinterpret_cast<Bf16*>(lease.data());
    float* cos = reinterpret_cast<float*>(lease.data() + head_bytes);
    float* sin = cos + pairs;
    for (int64_t i = begin; i < end; ++i) {
      rotary_table(p.positions[i], p.inv_freq, pairs, false, cos, sin);
      for (int64_t h = 0; h < p.heads; ++h) {
        std::copy_n(p.q + (i * p.heads + h) * p.columns, p.columns, head);
        k.rotate_pairs(raw(head + p.columns - p.rotary_dim), pairs, cos, sin);
        quantize_row(RowFormat::q4x, head, p.columns, p.packed + (i * p.heads + h) * packed_bytes);
      }
    }
  });
  return {};
}

Status index_score(KernelContext& ctx, const IndexScoreParams& p) {
  const RowKernels& k = row_kernels(ctx);
  ArenaScope scope(*ctx.arena);
  const IndexQueryRow* rows = expand_queries(ctx, p);
  Group* groups = ctx.arena->allocate<Group>(p.rows);
  int64_t tiles = 0;
  const int64_t group_count = group_rows(p, groups, tiles);

  const int64_t pointer_bytes = align_up(kIndexTile * 8, Buffer::kAlignment);
  WorkerScratch scratch(ctx, pointer_bytes + index_scratch_bytes(p.columns));
  // Ranges long enough to hide the pool's hand-over, short enough to share the work evenly.
  const int64_t grain = std::clamp<int64_t>(tiles / (ctx.pool->threads() * 8), 1, 32);
  ctx.pool->parallel_for(tiles, grain, [&](int64_t begin, int64_t end) {
    const WorkerScratch::Lease lease(scratch);
    const uint8_t** pointers = reinterpret_cast<const uint8_t**>(lease.data());
    const Group* g = std::upper_bound(groups, groups + group_count, begin,
                                      [](int64_t tile, const Group& x) { return tile < x.first_tile; }) -
                     1;
    for (int64_t t = begin; t < end; ++t) {
      while (t - g->first_tile >= ceil_div(g->visible, kIndexTile)) ++g;
      IndexTile tile;
      tile.first = (t - g->first_tile) * kIndexTile;
      tile.keys = std::min(kIndexTile, g->visible - tile.first);
      for (int64_t i = 0; i < tile.keys; ++i) {
        pointers[i] = p.keys.row(p.sequences[g->first_row], tile.first + i);
      }
      tile.key_rows = pointers;
      tile.rows = rows + g->first_row;
      tile.row_count = g->row_count;
      tile.heads = p.heads;
      tile.columns = p.columns;
      tile.round_bf16 = p.mode == IndexScoreMode::bf16;
      tile.scratch = lease.data() + pointer_bytes;
      k.index_tile(tile);
    }
  });
  // Tiles write up to the group's last visible key; the rest of every row is invisible.
  for (int64_t i = 0; i < group_count; ++i) {
    const Group& g = groups[i];
    ctx.pool->parallel_for(g.row_count, 4, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* scores = p.scores + (g.first_row + r) * p.score_stride;
        std::fill(scores + g.visible, scores + p.score_stride, -std::numeric_limits<float>::infinity());
      }
    });
  }
  return {};
}

}  // namespace cedar::kernels::cpu
