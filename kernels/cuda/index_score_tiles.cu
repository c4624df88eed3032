// A block scores a segment of keys for one row, or for four rows of a sequence. Packed keys come into shared
// memory a few tiles ahead and are decoded in registers straight into the operand of the matrix instruction;
// the queries lie decoded in shared memory for as long as the block lives (index_keys.h). A score is the same
// number in every kind of block.

#include "kernels/cuda/index_score_tiles.h"
#include "kernels/cuda/level.h"

#include <algorithm>
#include <limits>

#include "core/units.h"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/index_keys.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/wgmma_half.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = kIndexWarps * kWarp;
// Keys of a block under a mask: their list lies in shared memory.
constexpr int kMaskedSegment = 4096;

template <int kRows, class Source>
struct Shared {
  uint8_t queries[2 * kRows * kIndexHeads * 128];  // 1024-byte aligned
  uint8_t keys[Source::kSharedBytes];
  float weights[kRows][kIndexHeads];
  int32_t warp_counts[kIndexWarps];
  // Under a mask: int32_t list[kMaskedSegment] follows.
};

__device__ __forceinline__ float minus_infinity() { return -__int_as_float(0x7f800000); }

/// What one head adds to a score. fp32: `weight` is half the head's, and dot + |dot| twice the positive part: a maximum
/// would share a pipe with the decoding.
template <IndexScoreMode kMode>
__device__ __forceinline__ void add_head(float& score, float dot, float weight) {
  if constexpr (kMode == IndexScoreMode::bf16) {
    score += round_to_bf16(__fmul_rn(fmaxf(round_to_bf16(dot), 0.0f), weight));
  } else {
    score = fmaf(dot + fabsf(dot), weight, score);
  }
}

/// All tiles of `keys` for rows [first, first + rows) of the tile whose row 0 is `base`.
template <int kRows, IndexScoreMode kMode, class Source>
__device__ __forceinline__ void score_keys(const IndexScoreParams& p,
                                           const Shared<kRows, Source>& s, Source& source,
                                           const IndexKeys& keys, int64_t base, int first,
                                           int rows) {
  constexpr int kN = kRows * kIndexHeads;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = warp / 4, part = warp % 4;
  const int c = lane % 4;
  const uint64_t b0 = tile_descriptor(shared_address(s.queries));
  const uint64_t b1 = tile_descriptor(shared_address(s.queries) + kN * 128);
  // The four lanes that hold two keys' sums share the rows, or the keys of one row: this lane's row, and what it sees.
  const int own = kRows == 1 ? 0 : c;
  const bool writes = (kRows > 1 || c < 2) && own >= first && own < first + rows;
  const int seen = writes ? static_cast<int>(p.visible[base + own]) - keys.begin : 0;
  const int count = writes ? keys.count : 0;
  // This lane's first key of the tile, and where its score goes.
  int place = group * kTileKeys + part * kWarpKeys + lane / 4 + (kRows == 1 ? 8 * c : 0);
  float* scores = p.scores + (base + own) * p.score_stride;
  constexpr bool kInOrder = std::is_same_v<Source, StreamedKeys>;
  scores += keys.begin;
  if constexpr (kInOrder) scores += place;
  asm volatile("" : "+l"(scores));
  const int tiles = keys.tiles();
  source.begin(keys, group);
  for (int tile = group; tile < tiles; tile += kIndexGroups) {
    uint32_t a[8][4];
    uint32_t largest;
    decode_keys(source.lane, source.take(), a, largest);
    if constexpr (!kInOrder) source.done(keys, tile);
    float d[kN / 2];
    wgmma_fence();
    HalfChain<kN>::run(d, a, b0, b1);
    wgmma_commit();
    // A few threads start the next copy: while the tensor cores run.
    if constexpr (kInOrder) source.done(keys, tile);
    wgmma_wait<0>();
    settle(d);

    float sum[2][kRows] = {};  // keys lane / 4 and lane / 4 + 8 of the warp
#pragma unroll
    for (int j = 0; j < 4 * kRows; ++j) {
      const float2 weight =
          *reinterpret_cast<const float2*>(&s.weights[j / 4][8 * (j % 4) + 2 * c]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        add_head<kMode>(sum[half][j / 4], d[4 * j + 2 * half], weight.x);
        add_head<kMode>(sum[half][j / 4], d[4 * j + 2 * half + 1], weight.y);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        sum[half][r] += __shfl_xor_sync(kAllLanes, sum[half][r], 1);
        sum[half][r] += __shfl_xor_sync(kAllLanes, sum[half][r], 2);
      }
    }
    // `ahead`: keys behind `place`.
    const auto store = [&](int half, int ahead, float score) {
      if (place + ahead >= count) return;
      const int j = kInOrder ? place + ahead : keys.index(place + ahead) - keys.begin;
      score *= largest_scale<kKeyTop>(static_cast<int>(largest >> (16 * half) & 0xffff));
      if constexpr (kMode == IndexScoreMode::bf16) score = round_to_bf16(score);
      scores[kInOrder ? ahead : j] = j < seen ? score : minus_infinity();
    };
    if constexpr (kRows == 1) {
      store(c, 0, c == 0 ? sum[0][0] : sum[1][0]);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float score = 0;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (r == own) score = sum[half][r];
        }
        store(half, 8 * half, score);
      }
    }
    place += kIndexGroups * kTileKeys;
    if constexpr (kInOrder) scores += kIndexGroups * kTileKeys;
  }
  source.end();
}

/// Lists the keys of the segment that the row's mask allows. Returns how many.
template <class Shared>
__device__ int list_keys(const IndexScoreParams& p, int64_t row, int begin, int end, Shared& s,
                         int32_t* list) {
  static_assert(kMaskedSegment / 32 <= kThreads);
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = begin + static_cast<int>(threadIdx.x) * 32;
  uint32_t bits = 0;
  if (threadIdx.x < kMaskedSegment / 32 && first < end) {
    bits = p.mask[row * p.mask_stride + first / 32];
    if (end - first < 32) bits &= (1u << (end - first)) - 1;
  }
  int place = __popc(bits);
  const int mine = place;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, place, step);
    if (lane >= step) place += other;
  }
  if (lane == kWarp - 1) s.warp_counts[warp] = place;
  __syncthreads();
  int count = 0;
  place -= mine;
  for (int w = 0; w < kIndexWarps; ++w) {
    if (w < warp) place += s.warp_counts[w];
    count += s.warp_counts[w];
  }
  for (; bits != 0; bits &= bits - 1) list[place++] = first + __ffs(static_cast<int>(bits)) - 1;
  __syncthreads();
  return count;
}

__device__ void hide(const IndexScoreParams& p, int64_t row, int begin, int end) {
  for (int j = begin + static_cast<int>(threadIdx.x); j < end; j += static_cast<int>(blockDim.x)) {
    p.scores[row * p.score_stride + j] = minus_infinity();
  }
}

/// Keys [blockIdx.x * segment, ...) of rows [blockIdx.y * kRows, ...).
template <int kRows, IndexScoreMode kMode, class Source>
__global__ void __launch_bounds__(kThreads, kRows == 1 ? 3 : 2)
    tiles_kernel(IndexScoreParams p, int segment) {
#if CEDAR_HOPPER_CODE
  extern __shared__ __align__(1024) uint8_t storage[];
  auto& s = *reinterpret_cast<Shared<kRows, Source>*>(storage);
  const int64_t base = blockIdx.y * int64_t{kRows};
  const int begin = static_cast<int>(blockIdx.x) * segment;
  const int end = static_cast<int>(min(begin + int64_t{segment}, p.score_stride));
  const int rows = static_cast<int>(min(p.rows - base, int64_t{kRows}));
  int64_t shown = 0;
  for (int r = 0; r < rows; ++r) shown = max(shown, p.visible[base + r]);
  if (shown <= begin) {
    for (int r = 0; r < rows; ++r) hide(p, base + r, begin, end);
    return;
  }
  Source source(s.keys);
  expand_queries<kRows, kThreads>(p, base, s.queries, s.weights,
                                  kMode == IndexScoreMode::bf16 ? 1.0f : 0.5f);
  fence_for_tensor_cores();
  __syncthreads();

  // Rows of one sequence share their keys.
  for (int first = 0; first < rows;) {
    IndexKeys keys;
    keys.rows = p.keys;
    keys.sequence = p.sequences[base + first];
    int count = 0;
    int64_t limit = 0;
    for (; first + count < rows && p.sequences[base + first + count] == keys.sequence; ++count) {
      limit = max(limit, p.visible[base + first + count]);
    }
    const int last = max(static_cast<int>(min(limit, int64_t{end})), begin);
    keys.begin = begin;
    keys.list = nullptr;
    keys.count = last - begin;
    if (kRows == 1 && p.mask != nullptr) {
      auto* list = reinterpret_cast<int32_t*>(&s + 1);
      hide(p, base, begin, end);
      keys.count = list_keys(p, base, begin, last, s, list);
      keys.list = list;
    } else {
      for (int r = first; r < first + count; ++r) hide(p, base + r, last, end);
    }
    if (keys.count > 0) {
      score_keys<kRows, kMode>(p, s, source, keys, base, first, count);
    }
    first += count;
  }
#endif
}

template <int kRows, IndexScoreMode kMode, class Source>
Status launch(KernelContext& ctx, const IndexScoreParams& p, int64_t segment) {
  const size_t shared =
      sizeof(Shared<kRows, Source>) + (p.mask != nullptr ? kMaskedSegment * sizeof(int32_t) : 0);
  CEDAR_CHECK_OK(allow_shared("index_score", tiles_kernel<kRows, kMode, Source>, shared));
  const dim3 grid(static_cast<unsigned>(ceil_div(p.score_stride, segment)),
                  static_cast<unsigned>(ceil_div(p.rows, kRows)));
  tiles_kernel<kRows, kMode, Source>
      <<<grid, kThreads, shared, stream_of(ctx)>>>(p, static_cast<int>(segment));
  return launched("index_score");
}

// Long enough to pay for the queries.
constexpr int64_t kShortest = 512;

/// Keys of a block whose queries are four rows: short enough to give every multiprocessor several.
int64_t shared_segment(const IndexScoreParams& p) {
  constexpr int64_t kLongest = 8192;
  const int64_t even =
      align_up(ceil_div(p.score_stride * ceil_div(p.rows, 4), int64_t{multiprocessors()} * 6),
               2 * kTileKeys);
  return std::clamp(even, kShortest, kLongest);
}

/// Keys of a block with one row: as many blocks as run at a time, or a multiple of that, whatever ends first.
int64_t single_segment(const IndexScoreParams& p) {
  constexpr int64_t kMostWaves = 4, kQueryCost = 512;  // in keys
  const int64_t resident = int64_t{multiprocessors()} * 3;
  int64_t best = kShortest, least = std::numeric_limits<int64_t>::max();
  for (int64_t waves = 1; waves <= kMostWaves; ++waves) {
    const int64_t parts = std::max<int64_t>(waves * resident / p.rows, 1);
    const int64_t segment =
        std::max(align_up(ceil_div(p.score_stride, parts), 2 * kTileKeys), kShortest);
    const int64_t blocks = p.rows * ceil_div(p.score_stride, segment);
    const int64_t cost = ceil_div(blocks, resident) * (segment + kQueryCost);
    if (cost < least) {
      least = cost;
      best = segment;
    }
  }
  return best;
}

template <IndexScoreMode kMode>
Status launch_mode(KernelContext& ctx, const IndexScoreParams& p) {
  if (p.mask != nullptr) {
    // A row alone is cut into as many segments as keep the device busy.
    constexpr int64_t kShortestMasked = 512;
    const int64_t even =
        align_up(ceil_div(p.score_stride * p.rows, int64_t{multiprocessors()} * 3), 32);
    return launch<1, kMode, GatheredKeys>(
        ctx, p, std::clamp<int64_t>(even, kShortestMasked, kMaskedSegment));
  }
  const bool shared = p.rows_per_sequence > 1 && p.rows > 1;
  const int64_t segment = shared ? shared_segment(p) : single_segment(p);
  const PagedRows& k = p.keys;
  const bool streamed = k.row_bytes == kIndexBytes && k.rows_per_page % kTileKeys == 0 &&
                        k.page_bytes % 16 == 0 && k.offset_bytes % 16 == 0 && aligned16(k.base);
  if (shared) {
    return streamed ? launch<4, kMode, StreamedKeys>(ctx, p, segment)
                    : launch<4, kMode, GatheredKeys>(ctx, p, segment);
  }
  return streamed ? launch<1, kMode, StreamedKeys>(ctx, p, segment)
                  : launch<1, kMode, GatheredKeys>(ctx, p, segment);
}

}  // namespace

bool fits_tiles(const IndexScoreParams& p) {
  const auto words = [](int64_t bytes) { return bytes % 4 == 0; };
  return p.heads == kIndexHeads && p.columns == kIndexColumns &&
         words(static_cast<int64_t>(reinterpret_cast<uintptr_t>(p.q))) && words(p.keys.row_bytes) &&
         words(p.keys.page_bytes) && words(p.keys.offset_bytes) &&
         words(static_cast<int64_t>(reinterpret_cast<uintptr_t>(p.keys.base)));
}

Status index_score_tiles(KernelContext& ctx, const IndexScoreParams& p) {
  return p.mode == IndexScoreMode::bf16 ? launch_mode<IndexScoreMode::bf16>(ctx, p)
                                        : launch_mode<IndexScoreMode::fp32>(ctx, p);
}

}  // namespace cedar::kernels::cuda
