#pragma once
// Index keys and queries of the release's shape (32 heads of 128 channels) as operands of fp16 matrix
// products, and the two ways in which packed keys reach shared memory.
//
// E2M1 codes times a power of two are exact in fp16, but their E8M0 scales span more than fp16 does. What
// counts is the ratio of a key's four scales: the largest becomes 2 (a query's: 2^13), the others lie below it,
// and 24 (26) powers of two further down, where fp32 sums no longer feel them, they become zero. The largest
// scale itself multiplies the finished score; a query's goes into its head's weight. Powers of two do not
// change a rounding.

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

constexpr int kKeyTop = 1, kQueryTop = 13;  // powers of two that the largest scales become
constexpr int kMostKeyPowers = 24, kMostQueryPowers = 26;

/// 2^(scale - 127) / 2^kTop, for the largest of a row's scales.
template <int kTop>
__device__ __forceinline__ float largest_scale(int scale) {
  if (scale == 255) return __int_as_float(0x7fc00000);
  return __int_as_float(max(scale - kTop, 0) << 23);
}

__device__ __forceinline__ uint32_t multiply_half2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

/// Eight E2M1 codes to four pairs of fp16: elements i and i + 4 of the word. A code's bits, set into fp16, are 2^-14 of
/// its value, subnormal numbers included; `factor`, twice in the word, gives that back.
__device__ __forceinline__ void decode_word(uint32_t x, uint32_t factor, uint32_t (&pairs)[4]) {
  constexpr uint32_t kSign = 0x80008000, kMagnitude = 0x0e000e00;
  pairs[0] = multiply_half2(((x << 12) & kSign) | ((x << 9) & kMagnitude), factor);
  pairs[1] = multiply_half2(((x << 8) & kSign) | ((x << 5) & kMagnitude), factor);
  pairs[2] = multiply_half2(((x << 4) & kSign) | ((x << 1) & kMagnitude), factor);
  pairs[3] = multiply_half2((x & kSign) | ((x >> 3) & kMagnitude), factor);
}
/// 2^(15 - powers) in both halves, zero where the powers are more than count.
__device__ __forceinline__ uint32_t key_factor(uint32_t powers) {
  return powers <= kMostKeyPowers ? 30 * 0x04000400u - powers * 0x04000400u : 0;
}

/// Where a lane's part of a warp's 16 packed keys, 68 bytes each, lies in shared memory: lane 4 g + c decodes group c of keys
/// g and g + 8. The offsets are kept in registers: made anew for each tile they would cost a tenth of all instructions.
struct LaneKeys {
  uint32_t codes, scales;  // of the ring's first tile

  /// `warp`: the address of the warp's keys in it.
  __device__ __forceinline__ explicit LaneKeys(uint32_t warp) {
    const uint32_t lane = threadIdx.x % kWarp, group = lane % 4;
    codes = warp + lane / 4 * kIndexBytes + group * 16;
    scales = warp + lane / 4 * kIndexBytes + kIndexColumns / 2 + group;
    asm volatile("" : "+r"(codes), "+r"(scales));
  }
};

/// The keys `offset` bytes into the ring as operand a of eight steps. `largest`: of the lane's two keys' scales, in the halves
/// of the word.
__device__ __forceinline__ void decode_keys(const LaneKeys& lane, uint32_t offset,
                                            uint32_t (&a)[8][4], uint32_t& largest) {
  const auto scale_of = [&](int half) {
    return load_shared_byte(lane.scales + offset + 8 * half * kIndexBytes);
  };
  const uint32_t own = scale_of(1) * 65536u + scale_of(0);
  largest = __vmaxu2(own, __shfl_xor_sync(kAllLanes, own, 1));
  largest = __vmaxu2(largest, __shfl_xor_sync(kAllLanes, largest, 2));
  const uint32_t powers = largest - own;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t factor = key_factor(half == 0 ? powers & 0xffff : powers >> 16);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t pairs[4];
      decode_word(load_shared<uint32_t>(lane.codes + offset + 8 * half * kIndexBytes + 4 * w),
                  factor, pairs);
      a[2 * w][half] = pairs[0];
      a[2 * w][2 + half] = pairs[1];
      a[2 * w + 1][half] = pairs[2];
      a[2 * w + 1][2 + half] = pairs[3];
    }
  }
}

/// Decodes the queries of rows [first, first + kRows) into two swizzled tiles of 64 channels, [kRows * heads]
/// rows each, and their heads' weights times `weight_factor`. All `kThreads` threads.
template <int kRows, int kThreads>
__device__ void expand_queries(const IndexScoreParams& p, int64_t first, uint8_t* tiles,
                               float (*weights)[kIndexHeads], float weight_factor) {
  constexpr int kWords = kIndexColumns / 8, kTileBytes = kRows * kIndexHeads * 128;
  const auto packed_query = [&](int n) {
    const int64_t row = min(first + n / kIndexHeads, p.rows - 1);
    return reinterpret_cast<const uint32_t*>(p.q +
                                             (row * kIndexHeads + n % kIndexHeads) * kIndexBytes);
  };
  const auto largest_of = [](uint32_t scales) {
    const uint32_t pairs = __vmaxu2(scales & 0x00ff00ff, scales >> 8 & 0x00ff00ff);
    return static_cast<int>(max(pairs & 0xffff, pairs >> 16));
  };
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < kRows * kIndexHeads * kWords; i += kThreads) {
    const uint32_t n = i / kWords, word = i % kWords, group = word / 4;
    const uint32_t* packed = packed_query(static_cast<int>(n));
    const uint32_t codes = packed[word], scales = packed[kWords];
    const int powers = largest_of(scales) - static_cast<int>(scales >> (8 * group) & 255);
    // In two steps: 2^(14 + kQueryTop - powers) may be more than fp16 holds.
    const uint32_t factor = powers <= kMostQueryPowers
                                ? static_cast<uint32_t>(15 + kQueryTop - 1 - powers) * 0x04000400u
                                : 0;
    uint32_t pairs[4];
    decode_word(codes, 30 * 0x04000400u, pairs);
    // The order in which decode_keys() leaves channels: word w of group g has places 32 w + 8 i + 2 g and the next.
    uint8_t* tile = tiles + word % 4 / 2 * kTileBytes;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      *reinterpret_cast<uint32_t*>(tile + swizzled(n, word % 2 * 4 + j) + group * 4) =
          multiply_half2(pairs[j], factor);
    }
  }
  for (int n = threadIdx.x; n < kRows * kIndexHeads; n += kThreads) {
    const int64_t row = min(first + n / kIndexHeads, p.rows - 1);
    const float weight =
        __fmul_rn(widen(p.head_weights[row * kIndexHeads + n % kIndexHeads]), p.head_weight_scale);
    weights[n / kIndexHeads][n % kIndexHeads] =
        weight * largest_scale<kQueryTop>(largest_of(packed_query(n)[kWords])) * weight_factor;
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

  __device__ GatheredKeys(uint8_t* shared)
      : lane(shared_address(shared) + threadIdx.x / kWarp * (kStages * kStageWords * 4)) {
    ring_ = reinterpret_cast<uint32_t*>(shared) + threadIdx.x / kWarp * kStages * kStageWords;
  }

  const LaneKeys lane;

  __device__ void begin(const IndexKeys& keys, int group) {
    stage_ = 0;
    for (int i = 0; i < kStages; ++i) fetch(keys, group + i * kIndexGroups, i);
  }
  /// Where in the ring the next tile is; then, when it is decoded, done().
  __device__ uint32_t take() {
    copy_async_wait<kStages - 1>();
    __syncwarp();
    return static_cast<uint32_t>(stage_ * kStageWords * 4);
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

/// Keys [begin, ...) whose tiles lie in one piece each: a thread of each warpgroup has them copied whole, a few ahead.
class StreamedKeys {
 public:
  static constexpr int kStages = 4;  // of a warpgroup
  static constexpr int kTileBytes = kTileKeys * kIndexBytes;
  static constexpr int kSharedBytes = kIndexGroups * kStages * (kTileBytes + 8);

  /// All threads of the block; a barrier of the block must follow.
  __device__ StreamedKeys(uint8_t* shared)
      : lane(ring_of(shared) + threadIdx.x / kWarp % 4 * (kWarpKeys * kIndexBytes)),
        ring_(ring_of(shared)) {
    const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
    barriers_ = shared_address(shared) + kIndexGroups * kStages * kTileBytes + group * kStages * 8;
    asm volatile("" : "+r"(barriers_));
    if (leads()) {
      for (int i = 0; i < kStages; ++i) barrier_init(full(i), 1);
      barrier_init_done();
    }
  }

  const LaneKeys lane;

  __device__ void begin(const IndexKeys& keys, int group) {
    if (!leads()) return;
    const auto per_page = static_cast<uint32_t>(keys.rows.rows_per_page);
    const auto first = static_cast<uint32_t>(keys.begin + group * kTileKeys);
    page_ = keys.rows.page_table + keys.sequence * keys.rows.max_pages + first / per_page;
    row_ = first % per_page;
    left_ = keys.tiles() - group;
    for (int i = 0; i < kStages; ++i) {
      locate(keys);
      copy_next(keys, (turn_ + i) % kStages);
    }
    locate(keys);
  }
  __device__ uint32_t take() {
    barrier_wait(full(turn_ % kStages), turn_ / kStages & 1);
    return turn_ % kStages * kTileBytes;
  }
  __device__ void done(const IndexKeys& keys, int) {
    sync_warps(1 + static_cast<int>(threadIdx.x) / kGroupThreads, kGroupThreads);
    if (leads()) {
      copy_next(keys, turn_ % kStages);
      locate(keys);
    }
    ++turn_;
  }
  __device__ void end() {}

 private:
  static constexpr int kGroupThreads = 4 * kWarp;

  static __device__ bool leads() { return threadIdx.x % kGroupThreads == 0; }
  static __device__ uint32_t ring_of(const uint8_t* shared) {
    return shared_address(shared) + threadIdx.x / kGroupThreads * (kStages * kTileBytes);
  }
  __device__ uint32_t full(uint32_t stage) const { return barriers_ + 8 * stage; }
  __device__ void copy_next(const IndexKeys& keys, uint32_t stage) {
    if (!has_next_) return;
    const PagedRows& rows = keys.rows;
    barrier_arrive_expecting(full(stage), kTileBytes);
    copy_bulk(
        ring_ + stage * kTileBytes,
        rows.base + next_page_ * rows.page_bytes + rows.offset_bytes + next_row_ * kIndexBytes,
        kTileBytes, full(stage));
  }
  /// The next tile's place: asked for a tile ahead, the page table being in memory, and not touched until then.
  __device__ void locate(const IndexKeys& keys) {
    has_next_ = left_ > 0;
    if (!has_next_) return;
    const PagedRows& rows = keys.rows;
    next_page_ = *page_;
    next_row_ = row_;
    left_ -= kIndexGroups;
    row_ += kIndexGroups * kTileKeys;
    for (; row_ >= static_cast<uint32_t>(rows.rows_per_page);
         row_ -= static_cast<uint32_t>(rows.rows_per_page)) {
      ++page_;
    }
  }

  uint32_t ring_, barriers_;
  uint32_t turn_ = 0;  // tiles of this warpgroup over the life of the block
  // The leader's: where the next tile lies, and the one after it; how many are left, those of the other warpgroups included.
  bool has_next_ = false;
  int32_t next_page_ = 0;
  uint32_t next_row_ = 0;
  const int32_t* page_ = nullptr;
  uint32_t row_ = 0;
  int left_ = 0;
};

}  // namespace cedar::kernels::cuda
