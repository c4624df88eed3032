// A block scores a segment of keys for one row, or for four rows of a sequence. Keys come packed into shared memory,
// 16 for each warp, a few tiles ahead, and are decoded in registers straight into the operand of the matrix
// instruction: lane 4 g + c of a warp decodes group c of keys g and g + 8. Queries lie decoded in shared memory for as
// long as the block lives, in the order of channels that this decoding gives.
//
// Decoded keys are their values times 2^-32 (a bf16 factor can then hold any scale up to 2^33 together with the 2^126
// that the bits of E2M1 lack); the weights of the heads give it back. Powers of two do not change a rounding.

#include "kernels/cuda/index_score_tiles.h"

#include <algorithm>

#include "core/units.h"
#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/wgmma.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kHeads = 32;
constexpr int kColumns = 128;
constexpr int kPackedBytes = 68;
constexpr int kPackedWords = kPackedBytes / 4;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kGroups = 2;     // warpgroups
constexpr int kTileKeys = 64;  // of a warpgroup
constexpr int kWarpKeys = 16;
// Tiles on their way: with two or three blocks a multiprocessor, 50 KB and more, which covers memory's latency.
constexpr int kStages = 4;
constexpr int kStageWords = kWarpKeys * kPackedWords;
// Keys of a block under a mask: their list lies in shared memory.
constexpr int kMaskedSegment = 4096;

template <int kRows>
struct Shared {
  static constexpr int kColumnsOfB = kHeads * kRows;
  uint8_t queries[2 * kColumnsOfB * 128];  // two tiles of 64 channels, 1024-byte aligned
  uint32_t ring[kWarps][kStages][kStageWords];
  float weights[kRows][kHeads];
  int32_t warp_counts[kWarps];
  // Under a mask: int32_t keys[kMaskedSegment] follow.
};

__device__ __forceinline__ float minus_infinity() { return -__int_as_float(0x7f800000); }

/// Where channel `e` of a query stands in the order in which keys are decoded.
__device__ __forceinline__ int decoded_place(int e) {
  const int group = e / 32, word = e % 32 / 8, pair = e % 4, high = e % 8 / 4;
  return 16 * (2 * word + pair / 2) + 8 * (pair % 2) + 2 * group + high;
}

template <int kRows>
__device__ void expand_queries(const IndexScoreParams& p, int64_t first, Shared<kRows>& s) {
  constexpr int kBytes = kColumns / 2;
  for (int i = threadIdx.x; i < kRows * kHeads * kBytes; i += kThreads) {
    const int n = i / kBytes, byte = i % kBytes;
    const int64_t row = min(first + n / kHeads, p.rows - 1);
    const uint8_t* packed = p.q + (row * kHeads + n % kHeads) * kPackedBytes;
    const float scale = e8m0_to_float(packed[kBytes + byte / 16]);
    const uint8_t both = packed[byte];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float value = e2m1_to_float(half == 0 ? both & 15 : both >> 4) * scale;
      const int k = decoded_place(2 * byte + half);
      uint8_t* tile = s.queries + k / 64 * (Shared<kRows>::kColumnsOfB * 128);
      *reinterpret_cast<Bf16*>(tile + swizzled(n, k % 64 / 8) + k % 8 * 2) = Bf16(value);
    }
  }
  for (int i = threadIdx.x; i < kRows * kHeads; i += kThreads) {
    const int64_t row = min(first + i / kHeads, p.rows - 1);
    const float weight =
        __fmul_rn(widen(p.head_weights[row * kHeads + i % kHeads]), p.head_weight_scale);
    s.weights[i / kHeads][i % kHeads] = weight * 0x1p32f;
  }
}

/// The keys of one block: [begin, begin + count), or those that `list` names.
struct Keys {
  PagedRows rows;
  int64_t sequence;
  const int32_t* list;  // shared memory, or null
  int begin;
  int count;
  bool pieces;  // 16 neighbouring keys are 16-byte pieces of one page

  __device__ int index(int i) const { return list != nullptr ? list[i] : begin + i; }
};

/// Starts the copy of keys [first, first + 16) of the block into a warp's stage.
__device__ __forceinline__ void fetch(const Keys& keys, int first, uint32_t* stage) {
  const int lane = threadIdx.x % kWarp;
  const PagedRows& rows = keys.rows;
  const auto row_of = [&](uint32_t j) {
    const auto per_page = static_cast<uint32_t>(rows.rows_per_page);
    const int64_t page = rows.page_table[keys.sequence * rows.max_pages + j / per_page];
    return rows.base + page * rows.page_bytes + rows.offset_bytes + j % per_page * rows.row_bytes;
  };
  if (first < keys.count) {
    if (keys.pieces) {
      const uint8_t* from = row_of(static_cast<uint32_t>(keys.begin + first));
      for (int i = lane; i < kStageWords / 4; i += kWarp) {
        copy_async(shared_address(stage + 4 * i), from + 16 * i, true);
      }
    } else {
#pragma unroll 3
      for (int i = lane; i < kStageWords; i += kWarp) {
        // Places past the last key repeat it; what comes of them is not stored.
        const int key = min(first + i / kPackedWords, keys.count - 1);
        const uint8_t* from = row_of(static_cast<uint32_t>(keys.index(key))) + i % kPackedWords * 4;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(stage + i)),
                     "l"(from)
                     : "memory");
      }
    }
  }
  copy_async_commit();
}

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

/// Eight E2M1 codes to four pairs: elements i and i + 4 of the word.
__device__ __forceinline__ void decode_word(uint32_t x, uint32_t factor, uint32_t (&pairs)[4]) {
  constexpr uint32_t kSign = 0x80008000, kMagnitude = 0x01c001c0;
  pairs[0] = multiply_bf16x2(((x << 12) & kSign) | ((x << 6) & kMagnitude), factor);
  pairs[1] = multiply_bf16x2(((x << 8) & kSign) | ((x << 2) & kMagnitude), factor);
  pairs[2] = multiply_bf16x2(((x << 4) & kSign) | ((x >> 2) & kMagnitude), factor);
  pairs[3] = multiply_bf16x2((x & kSign) | ((x >> 6) & kMagnitude), factor);
}

/// 2^(code - 127) * 2^126 * 2^-32, twice, as bf16.
__device__ __forceinline__ uint32_t key_factor(uint32_t code) {
  const uint32_t bits = code == 255 ? 0x7fc0u : min(code + 94u, 254u) << 7;
  return bits * 0x10001u;
}

/// The warp's 16 keys as operand a of the eight k steps.
__device__ __forceinline__ void decode_keys(const uint32_t* stage, uint32_t (&a)[8][4]) {
  const int lane = threadIdx.x % kWarp, group = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t* key = stage + (lane / 4 + 8 * half) * kPackedWords;
    const uint32_t factor = key_factor(key[kColumns / 8] >> (8 * group) & 255u);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t pairs[4];
      decode_word(key[4 * group + w], factor, pairs);
      a[2 * w][half] = pairs[0];
      a[2 * w][2 + half] = pairs[1];
      a[2 * w + 1][half] = pairs[2];
      a[2 * w + 1][2 + half] = pairs[3];
    }
  }
}

/// What one head adds to a score.
template <IndexScoreMode kMode>
__device__ __forceinline__ void add_head(float& score, float dot, float weight) {
  if constexpr (kMode == IndexScoreMode::bf16) {
    score += round_to_bf16(__fmul_rn(fmaxf(round_to_bf16(dot), 0.0f), weight));
  } else {
    score = fmaf(fmaxf(dot, 0.0f), weight, score);
  }
}

/// All tiles of the block's keys for rows [first, first + rows) of the tile whose row 0 is `base`.
template <int kRows, IndexScoreMode kMode>
__device__ __forceinline__ void score_keys(const IndexScoreParams& p, Shared<kRows>& s,
                                           const Keys& keys, int64_t base, int first, int rows) {
  constexpr int kN = Shared<kRows>::kColumnsOfB;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = warp / 4, part = warp % 4;
  const int c = lane % 4;
  uint32_t(*ring)[kStageWords] = s.ring[warp];
  const auto first_key = [&](int tile) { return tile * kTileKeys + part * kWarpKeys; };
  const int tiles = (keys.count + kTileKeys - 1) / kTileKeys;
  uint64_t b[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    b[half] = tile_descriptor(shared_address(s.queries) + half * kN * 128);
  }
#pragma unroll
  for (int i = 0; i < kStages; ++i) fetch(keys, first_key(group + i * kGroups), ring[i]);
  int stage = 0;
  for (int tile = group; tile < tiles; tile += kGroups) {
    copy_async_wait<kStages - 1>();
    __syncwarp();
    uint32_t a[8][4];
    decode_keys(ring[stage], a);
    __syncwarp();
    fetch(keys, first_key(tile + kStages * kGroups), ring[stage]);
    stage = (stage + 1) % kStages;
    float d[kN / 2];
#pragma unroll
    for (float& x : d) x = 0;
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < 8; ++t) Wgmma<kN>::ra(d, a[t], b[t / 4] + descriptor_step(t % 4));
    wgmma_commit();
    wgmma_wait<0>();
    settle(d);

    float low[kRows] = {}, high[kRows] = {};  // keys lane / 4 and lane / 4 + 8 of the warp
#pragma unroll
    for (int j = 0; j < 4 * kRows; ++j) {
      const float2 weight =
          *reinterpret_cast<const float2*>(&s.weights[j / 4][8 * (j % 4) + 2 * c]);
      add_head<kMode>(low[j / 4], d[4 * j], weight.x);
      add_head<kMode>(low[j / 4], d[4 * j + 1], weight.y);
      add_head<kMode>(high[j / 4], d[4 * j + 2], weight.x);
      add_head<kMode>(high[j / 4], d[4 * j + 3], weight.y);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      low[r] += __shfl_xor_sync(kAllLanes, low[r], 1);
      high[r] += __shfl_xor_sync(kAllLanes, high[r], 1);
      low[r] += __shfl_xor_sync(kAllLanes, low[r], 2);
      high[r] += __shfl_xor_sync(kAllLanes, high[r], 2);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = first_key(tile) + lane / 4 + 8 * half;
      if (at >= keys.count) continue;
      const int j = keys.index(at);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        // The four lanes that hold a key's sums share its rows.
        if (r % 4 != c || r < first || r >= first + rows) continue;
        float score = half == 0 ? low[r] : high[r];
        if constexpr (kMode == IndexScoreMode::bf16) score = round_to_bf16(score);
        if (j >= p.visible[base + r]) score = minus_infinity();
        p.scores[(base + r) * p.score_stride + j] = score;
      }
    }
  }
  copy_async_wait<0>();
}

/// Lists the keys of the segment that the row's mask allows; all threads. Returns how many.
template <int kRows>
__device__ int list_keys(const IndexScoreParams& p, int64_t row, int begin, int end,
                         Shared<kRows>& s, int32_t* list) {
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
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) place += s.warp_counts[w];
    count += s.warp_counts[w];
  }
  for (; bits != 0; bits &= bits - 1) list[place++] = first + __ffs(static_cast<int>(bits)) - 1;
  __syncthreads();
  return count;
}

__device__ void hide(const IndexScoreParams& p, int64_t row, int begin, int end) {
  for (int j = begin + static_cast<int>(threadIdx.x); j < end; j += kThreads) {
    p.scores[row * p.score_stride + j] = minus_infinity();
  }
}

/// Keys [blockIdx.x * segment, ...) of rows [blockIdx.y * kRows, ...).
template <int kRows, IndexScoreMode kMode>
__global__ void __launch_bounds__(kThreads, kRows == 1 ? 3 : 2)
    tiles_kernel(IndexScoreParams p, int segment, bool pieces) {
  extern __shared__ uint8_t storage[];
  auto& s = *reinterpret_cast<Shared<kRows>*>(storage +
                                              ((1024 - (shared_address(storage) & 1023)) & 1023));
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
  expand_queries<kRows>(p, base, s);
  fence_for_tensor_cores();
  __syncthreads();

  // Rows of one sequence share their keys.
  for (int first = 0; first < rows;) {
    Keys keys;
    keys.rows = p.keys;
    keys.sequence = p.sequences[base + first];
    int count = 0;
    int64_t limit = 0;
    for (; first + count < rows && p.sequences[base + first + count] == keys.sequence; ++count) {
      limit = max(limit, p.visible[base + first + count]);
    }
    const int last = static_cast<int>(min(limit, int64_t{end}));
    keys.begin = begin;
    keys.list = nullptr;
    keys.count = max(last - begin, 0);
    keys.pieces = pieces;
    if (kRows == 1 && p.mask != nullptr) {
      auto* list = reinterpret_cast<int32_t*>(&s + 1);
      hide(p, base, begin, end);
      keys.count = list_keys<kRows>(p, base, begin, last, s, list);
      keys.list = list;
      keys.pieces = false;
    } else {
      for (int r = first; r < first + count; ++r) hide(p, base + r, max(last, begin), end);
    }
    if (keys.count > 0) score_keys<kRows, kMode>(p, s, keys, base, first, count);
    first += count;
  }
}

template <int kRows, IndexScoreMode kMode>
Status launch(KernelContext& ctx, const IndexScoreParams& p, int64_t segment, bool pieces) {
  const size_t shared =
      sizeof(Shared<kRows>) + 1024 + (p.mask != nullptr ? kMaskedSegment * sizeof(int32_t) : 0);
  CEDAR_CHECK_OK(allow_shared("index_score", tiles_kernel<kRows, kMode>, shared));
  const dim3 grid(static_cast<unsigned>(ceil_div(p.score_stride, segment)),
                  static_cast<unsigned>(ceil_div(p.rows, kRows)));
  tiles_kernel<kRows, kMode>
      <<<grid, kThreads, shared, stream_of(ctx)>>>(p, static_cast<int>(segment), pieces);
  return launched("index_score");
}

}  // namespace

bool fits_tiles(const IndexScoreParams& p) {
  const auto words = [](int64_t bytes) { return bytes % 4 == 0; };
  return p.heads == kHeads && p.columns == kColumns && words(p.keys.row_bytes) &&
         words(p.keys.page_bytes) && words(p.keys.offset_bytes) &&
         words(static_cast<int64_t>(reinterpret_cast<uintptr_t>(p.keys.base)));
}

Status index_score_tiles(KernelContext& ctx, const IndexScoreParams& p) {
  const PagedRows& k = p.keys;
  const bool pieces = k.row_bytes == kPackedBytes && k.rows_per_page % kWarpKeys == 0 &&
                      k.page_bytes % 16 == 0 && k.offset_bytes % 16 == 0 && aligned16(k.base);
  const bool shared = p.mask == nullptr && p.rows_per_sequence > 1 && p.rows > 1;
  // Long enough to pay for the queries, short enough to give every multiprocessor several.
  constexpr int64_t kBlocksWanted = 132 * 6, kShortest = 512, kLongest = 8192;
  const int64_t row_tiles = shared ? ceil_div(p.rows, 4) : p.rows;
  const int64_t even = align_up(ceil_div(p.score_stride * row_tiles, kBlocksWanted), 2 * kTileKeys);
  const int64_t segment =
      p.mask != nullptr ? kMaskedSegment : std::clamp(even, kShortest, kLongest);
  if (p.mode == IndexScoreMode::bf16) {
    return shared ? launch<4, IndexScoreMode::bf16>(ctx, p, segment, pieces)
                  : launch<1, IndexScoreMode::bf16>(ctx, p, segment, pieces);
  }
  return shared ? launch<4, IndexScoreMode::fp32>(ctx, p, segment, pieces)
                : launch<1, IndexScoreMode::fp32>(ctx, p, segment, pieces);
}

}  // namespace cedar::kernels::cuda
