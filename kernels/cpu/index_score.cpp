// Work is cut into tiles of keys. Rows of one sequence that see every key share tiles: a tile is
// expanded once and scored against all of them. A row with a candidate pool gets tiles of its own,
// gathered from the pool. A key's score does not depend on the tile it is in.

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>

#include "core/units.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/row_context.h"

namespace cedar::kernels::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Rows that are scored against the same keys, and where their tiles start in the numbering of all
/// tiles.
struct Group {
  int64_t first_row = 0;
  int64_t row_count = 0;
  const int32_t* columns = nullptr;  // the pool of the only row, ascending; null: keys 0, 1, 2 ...
  int64_t keys = 0;                  // of the pool, or the largest number visible to a row
  int64_t first_tile = 0;

  int64_t tiles() const { return ceil_div(keys, kIndexTile); }
};

/// One row's pool; no columns where the row sees every key.
struct Pool {
  const int32_t* columns = nullptr;
  int64_t count = 0;
};

/// Unpacks one row's queries into `codes`, `bias`, `scale` and `weights`, laid out as IndexQueryRow
/// says.
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

/// Bits [0, count) of a mask, 32 at a time.
uint32_t mask_word(const uint32_t* mask, int64_t word, int64_t count) {
  const int64_t left = count - word * 32;
  return left >= 32 ? mask[word] : mask[word] & ((1u << left) - 1);
}

Pool* list_pools(KernelContext& ctx, const IndexScoreParams& p) {
  Pool* pools = ctx.arena->allocate<Pool>(p.rows);
  int32_t** lists = ctx.arena->allocate<int32_t*>(p.rows);
  std::uninitialized_value_construct_n(pools, p.rows);
  if (p.mask == nullptr) return pools;
  for (int64_t i = 0; i < p.rows; ++i) {
    const uint32_t* mask = p.mask + i * p.mask_stride;
    for (int64_t w = 0; w * 32 < p.visible[i]; ++w) {
      pools[i].count += std::popcount(mask_word(mask, w, p.visible[i]));
    }
    lists[i] =
        pools[i].count < p.visible[i] ? ctx.arena->allocate<int32_t>(pools[i].count) : nullptr;
    pools[i].columns = lists[i];
  }
  ctx.pool->parallel_for(p.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int32_t* out = lists[i];
      if (out == nullptr) continue;
      for (int64_t w = 0; w * 32 < p.visible[i]; ++w) {
        uint32_t bits = mask_word(p.mask + i * p.mask_stride, w, p.visible[i]);
        for (; bits != 0; bits &= bits - 1)
          *out++ = static_cast<int32_t>(w * 32 + std::countr_zero(bits));
      }
    }
  });
  return pools;
}

/// Fills `groups` (room for p.rows) and returns how many there are.
int64_t group_rows(const IndexScoreParams& p, const Pool* pools, Group* groups) {
  int64_t count = 0, tiles = 0;
  for (int64_t i = 0; i < p.rows;) {
    Group g;
    g.first_row = i;
    g.first_tile = tiles;
    if (pools[i].columns != nullptr) {
      g.columns = pools[i].columns;
      g.keys = pools[i].count;
      ++i;
    } else {
      for (;
           i < p.rows && pools[i].columns == nullptr && p.sequences[i] == p.sequences[g.first_row];
           ++i) {
        g.keys = std::max(g.keys, p.visible[i]);
      }
    }
    g.row_count = i - g.first_row;
    tiles += g.tiles();
    groups[count++] = g;
  }
  return count;
}

/// What the tiles will not write: everything past the visible keys, and all of a row with a pool.
void fill_invisible(KernelContext& ctx, const IndexScoreParams& p, const Group* groups,
                    int64_t group_count) {
  for (int64_t i = 0; i < group_count; ++i) {
    const Group& g = groups[i];
    const int64_t first = g.columns != nullptr ? 0 : g.keys;
    ctx.pool->parallel_for(g.row_count, 4, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* scores = p.scores + (g.first_row + r) * p.score_stride;
        std::fill(scores + first, scores + p.score_stride, kMinusInfinity);
      }
    });
  }
}

/// Pointers to keys [first, first + count) of one sequence, page by page.
void list_keys(const PagedRows& keys, int64_t sequence, int64_t first, int64_t count,
               const uint8_t** out) {
  for (int64_t j = first; j < first + count;) {
    const uint8_t* row = keys.row(sequence, j);
    const int64_t run = std::min(first + count - j, keys.rows_per_page - j % keys.rows_per_page);
    for (int64_t i = 0; i < run; ++i) *out++ = row + i * keys.row_bytes;
    j += run;
  }
}

/// Pointers to the keys [first, first + kIndexTile) of a group, as far as there are any; returns
/// how many.
int64_t tile_keys(const IndexScoreParams& p, const Group& g, int64_t first, const uint8_t** out) {
  const int64_t count = std::clamp<int64_t>(g.keys - first, 0, kIndexTile);
  const int64_t sequence = p.sequences[g.first_row];
  if (g.columns == nullptr) {
    list_keys(p.keys, sequence, first, count, out);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = p.keys.row(sequence, g.columns[first + i]);
  }
  return count;
}

void score_tile(const RowKernels& k, const IndexScoreParams& p, const IndexQueryRow* rows,
                const Group& g, int64_t first, uint8_t* scratch) {
  const uint8_t* keys[kIndexTile];
  // A tile reads its keys in one burst and then computes for long: the next burst can come in
  // meanwhile.
  const int64_t next = tile_keys(p, g, first + kIndexTile, keys);
  for (int64_t i = 0; i < next; ++i) {
    for (int64_t at = 0; at < p.keys.row_bytes; at += 64) __builtin_prefetch(keys[i] + at);
  }
  IndexTile tile;
  tile.keys = tile_keys(p, g, first, keys);
  tile.key_rows = keys;
  tile.heads = p.heads;
  tile.columns = p.columns;
  tile.round_bf16 = p.mode == IndexScoreMode::bf16;
  tile.scratch = scratch;
  tile.row_count = g.row_count;
  if (g.columns == nullptr) {
    tile.first = first;
    tile.rows = rows + g.first_row;
    k.index_tile(tile);
    return;
  }
  float found[kIndexTile];
  IndexQueryRow row = rows[g.first_row];
  float* scores = row.scores;
  row.scores = found;
  row.visible = tile.keys;
  tile.rows = &row;
  k.index_tile(tile);
  for (int64_t i = 0; i < tile.keys; ++i) scores[g.columns[first + i]] = found[i];
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
        k.quantize_q4x(raw(head), p.columns, p.packed + (i * p.heads + h) * packed_bytes);
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
  const int64_t group_count = group_rows(p, list_pools(ctx, p), groups);
  const int64_t tiles = groups[group_count - 1].first_tile + groups[group_count - 1].tiles();
  fill_invisible(ctx, p, groups, group_count);

  WorkerScratch scratch(ctx, index_scratch_bytes(p.columns));
  // Ranges long enough to hide the pool's hand-over, short enough to share the work evenly.
  const int64_t grain = std::clamp<int64_t>(tiles / (ctx.pool->threads() * 8), 1, 32);
  ctx.pool->parallel_for(tiles, grain, [&](int64_t begin, int64_t end) {
    const WorkerScratch::Lease lease(scratch);
    const auto starts_after = [](int64_t tile, const Group& x) { return tile < x.first_tile; };
    const Group* g = std::upper_bound(groups, groups + group_count, begin, starts_after) - 1;
    for (int64_t t = begin; t < end; ++t) {
      while (t - g->first_tile >= g->tiles()) ++g;
      score_tile(k, p, rows, *g, (t - g->first_tile) * kIndexTile, lease.data());
    }
  });
  return {};
}

}  // namespace cedar::kernels::cpu
