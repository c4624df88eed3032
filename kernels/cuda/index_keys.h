#pragma once
// Index keys and queries of the release's shape (32 heads of 128 channels) as operands of fp16 matrix
// products, and the two ways in which packed keys reach shared memory.
//
// E2M1 codes times a power of two are exact in fp16, but their E8M0 scales span more than fp16 does. What
// counts is the ratio of a key's four scales: the largest becomes 2^13, the others lie below it, and 26
// powers of two further down, where fp32 sums no longer feel them, they become zero. The largest scale itself
// multiplies the finished score; a query's goes into its head's weight. Powers of two do not change a
// rounding.

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/wgmma.h"
#include "kernels/index_score.h"

namespace cedar::kernels::cuda {

constexpr int kIndexHeads = 32;
constexpr int kIndexColumns = 128;
constexpr int kIndexBytes = 68;
constexpr int kIndexWords = kIndexBytes / 4;
constexpr int kTileKeys = 64;  // of a warpgroup
constexpr int kWarpKeys = 16;
constexpr int kIndexGroups = 2;  // warpgroups of a block
constexpr int kIndexWarps = 4 * kIndexGroups;

// ---- values -------------------------------------------------------------------------------------------------

/// Upper bytes of fp16 for the eight magnitudes of E2M1, times 2^13; the lower bytes are zero.
constexpr uint32_t kMagnitudesLow = 0x72706c00, kMagnitudesHigh = 0x7a787674;
/// A power of two is four in the upper byte; zero stays zero.
constexpr uint32_t kPowerLow = 0x04040400, kPowerHigh = 0x04040404;
constexpr int kMostPowers = 26;

/// 2^(scale - 127) / 2^13, for the largest of a row's scales.
__device__ __forceinline__ float largest_scale(int scale) {
  if (scale == 255) return __int_as_float(0x7fc00000);
  return __int_as_float(max(scale - 13, 0) << 23);
}
__device__ __forceinline__ int largest_byte(uint32_t scales) {
  const int a = max(static_cast<int>(scales & 255), static_cast<int>(scales >> 8 & 255));
  const int b = max(static_cast<int>(scales >> 16 & 255), static_cast<int>(scales >> 24));
  return max(a, b);
}

__device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
  return r;
}

/// Eight E2M1 codes to four pairs of fp16: elements i and i + 4 of the word. `low`, `high`: the group's
/// magnitudes.
__device__ __forceinline__ void decode_word(uint32_t x, uint32_t low, uint32_t high,
                                            uint32_t (&pairs)[4]) {
  constexpr uint32_t kSign = 0x80008000;
  const uint32_t magnitudes = x & 0x77777777;
  const uint32_t first = permute(low, high, magnitudes);
  const uint32_t second = permute(low, high, magnitudes >> 16);
  // A selector with bit 3 repeats the byte's sign, which is clear: the zero that a lower byte needs.
  pairs[0] = permute(first, second, 0x4c08) | ((x << 12) & kSign);
  pairs[1] = permute(first, second, 0x5d19) | ((x << 8) & kSign);
  pairs[2] = permute(first, second, 0x6e2a) | ((x << 4) & kSign);
  pairs[3] = permute(first, second, 0x7f3b) | (x & kSign);
}

/// A warp's 16 packed keys, 68 bytes each, as operand a of eight steps; lane 4 g + c decodes group c of keys
/// g and g + 8. `scale`: of those two keys.
__device__ __forceinline__ void decode_keys(const uint32_t* keys, uint32_t (&a)[8][4],
                                            float (&scale)[2]) {
  const int lane = threadIdx.x % kWarp, group = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t* key = keys + (lane / 4 + 8 * half) * kIndexWords;
    const uint32_t scales = key[kIndexColumns / 8];
    const int largest = largest_byte(scales);
    const auto powers = static_cast<uint32_t>(largest) - (scales >> (8 * group) & 255u);
    scale[half] = largest_scale(largest);
    const bool counts = powers <= kMostPowers;
    const uint32_t low = counts ? kMagnitudesLow - powers * kPowerLow : 0;
    const uint32_t high = counts ? kMagnitudesHigh - powers * kPowerHigh : 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t pairs[4];
      decode_word(key[4 * group + w], low, high, pairs);
      a[2 * w][half] = pairs[0];
      a[2 * w][2 + half] = pairs[1];
      a[2 * w + 1][half] = pairs[2];
      a[2 * w + 1][2 + half] = pairs[3];
    }
  }
}

/// Where channel `e` of a query stands in the order in which decode_keys() leaves channels.
__device__ __forceinline__ int decoded_place(int e) {
  const int group = e / 32, word = e % 32 / 8, pair = e % 4, high = e % 8 / 4;
  return 16 * (2 * word + pair / 2) + 8 * (pair % 2) + 2 * group + high;
}

/// Decodes the queries of rows [first, first + kRows) into two swizzled tiles of 64 channels, [kRows * heads]
/// rows each, and their heads' weights. All `kThreads` threads.
template <int kRows, int kThreads>
__device__ void expand_queries(const IndexScoreParams& p, int64_t first, uint8_t* tiles,
                               float (*weights)[kIndexHeads]) {
  constexpr int kBytes = kIndexColumns / 2, kTileBytes = kRows * kIndexHeads * 128;
  const auto packed_query = [&](int n) {
    const int64_t row = min(first + n / kIndexHeads, p.rows - 1);
    return p.q + (row * kIndexHeads + n % kIndexHeads) * kIndexBytes;
  };
  const auto largest_of = [](const uint8_t* scales) {
    return max(max(scales[0], scales[1]), max(scales[2], scales[3]));
  };
  constexpr uint64_t kMagnitudes = uint64_t{kMagnitudesHigh} << 32 | kMagnitudesLow;
  for (int i = threadIdx.x; i < kRows * kIndexHeads * kBytes; i += kThreads) {
    const int n = i / kBytes, byte = i % kBytes;
    const uint8_t* packed = packed_query(n);
    const int powers = largest_of(packed + kBytes) - packed[kBytes + byte / 16];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int code = packed[byte] >> (4 * half) & 15;
      const auto magnitude = static_cast<uint32_t>(kMagnitudes >> (8 * (code & 7)) & 255);
      uint32_t bits = magnitude == 0 || powers > kMostPowers
                          ? 0
                          : (magnitude - 4 * static_cast<uint32_t>(powers)) << 8;
      bits |= static_cast<uint32_t>(code >> 3) << 15;
      const int k = decoded_place(2 * byte + half);
      *reinterpret_cast<uint16_t*>(tiles + k / 64 * kTileBytes + swizzled(n, k % 64 / 8) +
                                   k % 8 * 2) = static_cast<uint16_t>(bits);
    }
  }
  for (int n = threadIdx.x; n < kRows * kIndexHeads; n += kThreads) {
    const int64_t row = min(first + n / kIndexHeads, p.rows - 1);
    const float weight =
        __fmul_rn(widen(p.head_weights[row * kIndexHeads + n % kIndexHeads]), p.head_weight_scale);
    weights[n / kIndexHeads][n % kIndexHeads] =
        weight * largest_scale(largest_of(packed_query(n) + kBytes));
  }
}

// ---- from memory --------------------------------------------------------------------------------------------

/// The keys of one block: [begin, begin + count), or those that `list` names.
struct IndexKeys {
  PagedRows rows;
  int64_t sequence;
  const int32_t* list;  // shared memory, or null
  int begin;
  int count;

  __device__ int index(int i) const { return list != nullptr ? list[i] : begin + i; }
  __device__ int tiles() const { return (count + kTileKeys - 1) / kTileKeys; }
  __device__ const uint8_t* row(int j) const {
    const auto per_page = static_cast<uint32_t>(rows.rows_per_page);
    const auto at = static_cast<uint32_t>(j);
    const int64_t page = rows.page_table[sequence * rows.max_pages + at / per_page];
    return rows.base + page * rows.page_bytes + rows.offset_bytes + at % per_page * rows.row_bytes;
  }
};

/// Keys in any order and at any alignment: every warp copies its own, word by word, a few tiles ahead.
class GatheredKeys {
 public:
  static constexpr int kStages = 4;
  static constexpr int kStageWords = kWarpKeys * kIndexWords;
  static constexpr int kSharedBytes = kIndexWarps * kStages * kStageWords * 4;

  __device__ GatheredKeys(uint8_t* shared) {
    ring_ = reinterpret_cast<uint32_t*>(shared) + threadIdx.x / kWarp * kStages * kStageWords;
  }
  __device__ void begin(const IndexKeys& keys, int group) {
    stage_ = 0;
    for (int i = 0; i < kStages; ++i) fetch(keys, group + i * kIndexGroups, i);
  }
  /// The warp's 16 keys of the next tile, then, when they are decoded, done().
  __device__ const uint32_t* take() {
    copy_async_wait<kStages - 1>();
    __syncwarp();
    return ring_ + stage_ * kStageWords;
  }
  __device__ void done(const IndexKeys& keys, int tile) {
    __syncwarp();
    fetch(keys, tile + kStages * kIndexGroups, stage_);
    stage_ = (stage_ + 1) % kStages;
  }
  __device__ void end() { copy_async_wait<0>(); }

 private:
  __device__ void fetch(const IndexKeys& keys, int tile, int stage) {
    const int lane = threadIdx.x % kWarp, part = threadIdx.x / kWarp % 4;
    const int first = tile * kTileKeys + part * kWarpKeys;
    uint32_t* to = ring_ + stage * kStageWords;
    if (first < keys.count) {
#pragma unroll 3
      for (int i = lane; i < kStageWords; i += kWarp) {
        // Places past the last key repeat it; what comes of them is not stored.
        const int key = min(first + i / kIndexWords, keys.count - 1);
        const uint8_t* from = keys.row(keys.index(key)) + i % kIndexWords * 4;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to + i)),
                     "l"(from)
                     : "memory");
      }
    }
    copy_async_commit();
  }

  uint32_t* ring_;
  int stage_ = 0;
};

/// Keys [begin, ...) whose tiles lie in one piece each: one thread has them copied whole.
class StreamedKeys {
 public:
  static constexpr int kStages = 6;
  static constexpr int kTileBytes = kTileKeys * kIndexBytes;
  static constexpr int kSharedBytes = kStages * (kTileBytes + 2 * 8);

  /// All threads of the block; a barrier of the block must follow.
  __device__ StreamedKeys(uint8_t* shared)
      : ring_(shared), barriers_(shared_address(shared) + kStages * kTileBytes) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        barrier_init(full(i), 1);
        barrier_init(empty(i), 4);
      }
      barrier_init_done();
    }
  }

  /// By one thread. `turn_` counts tiles over the life of the block, in both roles.
  __device__ void produce(const IndexKeys& keys) {
    const int tiles = keys.tiles();
    for (int tile = 0; tile < tiles; ++tile, ++turn_) {
      const uint32_t stage = turn_ % kStages;
      const uint8_t* from = keys.row(keys.begin + tile * kTileKeys);
      if (turn_ >= kStages) barrier_wait(empty(stage), (turn_ / kStages - 1) & 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full(stage)),
                   "r"(kTileBytes)
                   : "memory");
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
          "[%3];" ::"r"(shared_address(ring_) + stage * kTileBytes),
          "l"(from), "r"(kTileBytes), "r"(full(stage))
          : "memory");
    }
  }

  __device__ void begin(const IndexKeys& keys, int group) {
    next_ = turn_ + group;
    turn_ += keys.tiles();
  }
  __device__ const uint32_t* take() {
    barrier_wait(full(next_ % kStages), next_ / kStages & 1);
    return reinterpret_cast<const uint32_t*>(ring_ + next_ % kStages * kTileBytes) +
           threadIdx.x / kWarp % 4 * kWarpKeys * kIndexWords;
  }
  __device__ void done(const IndexKeys&, int) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) barrier_arrive(empty(next_ % kStages));
    next_ += kIndexGroups;
  }
  __device__ void end() {}

 private:
  __device__ uint32_t full(uint32_t stage) const { return barriers_ + 8 * stage; }
  __device__ uint32_t empty(uint32_t stage) const { return barriers_ + 8 * (kStages + stage); }

  uint8_t* ring_;
  uint32_t barriers_;
  uint32_t turn_ = 0;
  uint32_t next_ = 0;
};

}  // namespace cedar::kernels::cuda
