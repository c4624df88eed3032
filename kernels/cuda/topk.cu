// The k best of a row. A block finds the k best of a segment that its registers hold: it searches the k-th
// best score bit by bit, counting. Rows longer than a segment go round again over the segments' best, which
// lie in column order, so that the lower column wins a tie however a row is cut.

#include <algorithm>
#include <string>

#include "core/units.h"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"

namespace cedar::kernels::cuda {
namespace {

// Scores of one thread. More would leave no registers for a second block on a multiprocessor.
constexpr int kItems = 16;
constexpr int kMostThreads = 1024;
constexpr int64_t kMostSegment = int64_t{kMostThreads} * kItems;
// A round must at least halve a row.
constexpr int64_t kMostK = kMostSegment / 2;

/// Larger scores give larger keys; -0 and 0 one key; 0 is kept for "never chosen".
__device__ __forceinline__ uint32_t score_key(float score) {
  const uint32_t bits = __float_as_uint(score == 0.0f ? 0.0f : score);
  const uint32_t key = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  constexpr uint32_t kMinusInfinity = 0x007fffffu;
  return key == kMinusInfinity ? 0 : key;
}

/// A row of scores under an optional mask.
struct Scores {
  const float* scores;
  int64_t score_stride;
  const uint32_t* mask;
  int64_t mask_stride;
  int64_t columns;

  __device__ int64_t count(int64_t) const { return columns; }
  __device__ uint32_t key(int64_t row, int64_t c) const {
    if (mask != nullptr && (mask[row * mask_stride + c / 32] >> (c % 32) & 1u) == 0) return 0;
    return score_key(scores[row * score_stride + c]);
  }
  __device__ int32_t column(int64_t, int64_t c) const { return static_cast<int32_t>(c); }
};

/// The best score of every block of columns; the newest visible one is pinned.
struct BlockScores {
  const float* scores;
  int64_t score_stride;
  const int64_t* visible;
  int64_t columns;
  int64_t block;

  __device__ int64_t count(int64_t row) const {
    return (min(visible[row], columns) + block - 1) / block;
  }
  __device__ uint32_t key(int64_t row, int64_t b) const {
    if (b == count(row) - 1) return score_key(__int_as_float(0x7f800000));
    const float* from = scores + row * score_stride + b * block;
    float best = from[0];
    const int64_t last = min(block, columns - b * block);
    for (int64_t i = 1; i < last; ++i) best = fmaxf(best, from[i]);
    return score_key(best);
  }
  __device__ int32_t column(int64_t, int64_t b) const { return static_cast<int32_t>(b); }
};

/// What a round over segments leaves: keys (0 past the end) and columns, ascending within a row.
struct Found {
  uint32_t* keys;
  int32_t* columns;
  int64_t each;  // entries of a row

  __device__ int64_t count(int64_t) const { return each; }
  __device__ uint32_t key(int64_t row, int64_t i) const { return keys[row * each + i]; }
  __device__ int32_t column(int64_t row, int64_t i) const { return columns[row * each + i]; }
};

/// Sums over a block of whole warps; `scratch` holds two sets of 32 and alternates.
class BlockCount {
 public:
  __device__ explicit BlockCount(int (*scratch)[kWarp]) : scratch_(scratch) {}
  __device__ int total(int mine) {
    int* sums = scratch_[turn_];
    turn_ ^= 1;
    const int warp_total = __reduce_add_sync(kAllLanes, mine);
    if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = warp_total;
    __syncthreads();
    const int lane = threadIdx.x % kWarp;
    return __reduce_add_sync(kAllLanes,
                             lane < static_cast<int>(blockDim.x) / kWarp ? sums[lane] : 0);
  }

 private:
  int (*scratch_)[kWarp];
  int turn_ = 0;
};

__device__ __forceinline__ int inclusive_scan(int v) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, v, step);
    if (static_cast<int>(threadIdx.x % kWarp) >= step) v += other;
  }
  return v;
}

/// Segment blockIdx.x of row blockIdx.y. `keys_out` null: the last round, which writes columns and kNoIndex
/// only.
template <class Input>
__global__ void __launch_bounds__(kMostThreads)
    select_kernel(Input in, int64_t k, uint32_t* keys_out, int32_t* columns_out) {
  __shared__ int counts[2][kWarp];
  __shared__ int greater_of[kWarp], equal_of[kWarp], ties_of[kWarp], place_of[kWarp];
  __shared__ int chosen;
  const int64_t row = blockIdx.y;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t begin =
      blockIdx.x * int64_t{blockDim.x} * kItems + int64_t{warp} * kWarp * kItems + lane;
  const int64_t count = in.count(row);

  uint32_t keys[kItems];
  uint32_t highest = 0, lowest = 0xffffffffu;
  int present = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t at = begin + i * kWarp;
    keys[i] = at < count ? in.key(row, at) : 0;
    highest = max(highest, keys[i]);
    if (keys[i] != 0) lowest = min(lowest, keys[i]);
    present += keys[i] != 0 ? 1 : 0;
  }
  BlockCount block(counts);
  const int total = block.total(present);
  uint32_t threshold = 1;  // chosen: keys above it, and the first `ties` equal to it
  int ties = 0;
  if (total > k) {
    // The k-th best key lies between the extremes: their common upper bits are known.
    highest = __reduce_max_sync(kAllLanes, highest);
    lowest = __reduce_min_sync(kAllLanes, lowest);
    if (lane == 0) {
      greater_of[warp] = static_cast<int>(highest);
      equal_of[warp] = static_cast<int>(lowest);
    }
    __syncthreads();
    const bool holds = lane < warps;
    highest = __reduce_max_sync(kAllLanes, holds ? static_cast<uint32_t>(greater_of[lane]) : 0u);
    lowest =
        __reduce_min_sync(kAllLanes, holds ? static_cast<uint32_t>(equal_of[lane]) : 0xffffffffu);
    const int known = __clz(static_cast<int>(highest ^ lowest));
    threshold = known == 0 ? 0 : highest & ~(0xffffffffu >> (known - 1) >> 1);
    bool exact = false;
    for (int bit = 31 - known; bit >= 0 && !exact; --bit) {
      const uint32_t candidate = threshold | 1u << bit;
      int above = 0;
#pragma unroll
      for (int i = 0; i < kItems; ++i) above += keys[i] >= candidate ? 1 : 0;
      const int found = block.total(above);
      if (found >= k) threshold = candidate;
      exact = found == k;
    }
    if (exact) {
      threshold -= 1;  // all keys >= the candidate are chosen, and none below it
    } else {
      int above = 0;
#pragma unroll
      for (int i = 0; i < kItems; ++i) above += keys[i] > threshold ? 1 : 0;
      ties = static_cast<int>(k) - block.total(above);
    }
  } else {
    threshold = 0;
  }

  // Places: elements go by warp, then by item, then by lane.
  int greater = 0, equal = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    greater += __popc(__ballot_sync(kAllLanes, keys[i] > threshold));
    equal += __popc(__ballot_sync(kAllLanes, keys[i] == threshold && ties > 0));
  }
  __syncthreads();
  if (lane == 0) {
    greater_of[warp] = greater;
    equal_of[warp] = equal;
  }
  __syncthreads();
  if (warp == 0) {
    const int mine = lane < warps ? equal_of[lane] : 0;
    const int before = inclusive_scan(mine) - mine;
    const int taken = max(0, min(mine, ties - before));
    const int selected = (lane < warps ? greater_of[lane] : 0) + taken;
    const int place = inclusive_scan(selected);
    if (lane < warps) {
      ties_of[lane] = taken;
      place_of[lane] = place - selected;
    }
    if (lane == kWarp - 1) chosen = place;
  }
  __syncthreads();
  const int64_t out = (row * gridDim.x + blockIdx.x) * k;
  const uint32_t lanes_before = (1u << lane) - 1;
  int place = place_of[warp], ties_left = ties_of[warp];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const uint32_t equal_lanes = __ballot_sync(kAllLanes, keys[i] == threshold && ties > 0);
    const bool tie =
        (equal_lanes >> lane & 1u) != 0 && __popc(equal_lanes & lanes_before) < ties_left;
    const bool take = keys[i] > threshold || tie;
    const uint32_t lanes = __ballot_sync(kAllLanes, take);
    if (take) {
      const int64_t to = out + place + __popc(lanes & lanes_before);
      columns_out[to] = in.column(row, begin + i * kWarp);
      if (keys_out != nullptr) keys_out[to] = keys[i];
    }
    place += __popc(lanes);
    ties_left = max(0, ties_left - __popc(equal_lanes));
  }
  for (int64_t i = chosen + static_cast<int64_t>(threadIdx.x); i < k; i += blockDim.x) {
    columns_out[out + i] = kNoIndex;
    if (keys_out != nullptr) keys_out[out + i] = 0;
  }
}

template <class Input>
void launch_select(KernelContext& ctx, const Input& in, int64_t rows, int64_t longest, int64_t k,
                   uint32_t* keys_out, int32_t* columns_out) {
  const int64_t threads =
      std::clamp<int64_t>(align_up(ceil_div(longest, kItems), kWarp), kWarp, kMostThreads);
  const dim3 grid(static_cast<unsigned>(std::max<int64_t>(ceil_div(longest, threads * kItems), 1)),
                  static_cast<unsigned>(rows));
  select_kernel<<<grid, static_cast<unsigned>(threads), 0, stream_of(ctx)>>>(in, k, keys_out,
                                                                             columns_out);
}

/// The k best of rows of at most `longest` entries, columns ascending, then kNoIndex.
template <class Input>
Status select(const char* operation, KernelContext& ctx, const Input& in, int64_t rows,
              int64_t longest, int64_t k, int32_t* indices) {
  if (k > kMostK) {
    return make_error(Errc::unsupported, std::string(operation) + ": k " + std::to_string(k) +
                                             ", at most " + std::to_string(kMostK));
  }
  if (longest <= kMostSegment) {
    launch_select(ctx, in, rows, longest, k, nullptr, indices);
    return launched(operation);
  }
  const auto round = [&](int64_t length) {
    const int64_t each = ceil_div(length, kMostSegment) * k;
    return Found{ctx.arena->allocate<uint32_t>(rows * each),
                 ctx.arena->allocate<int32_t>(rows * each), each};
  };
  Found found = round(longest);
  launch_select(ctx, in, rows, longest, k, found.keys, found.columns);
  while (found.each > kMostSegment) {
    const Found next = round(found.each);
    launch_select(ctx, found, rows, found.each, k, next.keys, next.columns);
    found = next;
  }
  launch_select(ctx, found, rows, found.each, k, nullptr, indices);
  return launched(operation);
}

constexpr int kMarkThreads = 256;

/// One block a row: the mask of the kept blocks.
__global__ void __launch_bounds__(kMarkThreads)
    mark_kernel(CandidateBlocksParams p, const int32_t* kept, int64_t count) {
  const int64_t row = blockIdx.x;
  uint32_t* mask = p.mask + row * p.mask_stride;
  for (int64_t w = threadIdx.x; w < p.mask_stride; w += kMarkThreads) mask[w] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < count; i += kMarkThreads) {
    const int64_t b = kept[row * count + i];
    if (b < 0) continue;
    const int64_t end = min((b + 1) * p.block, p.columns);
    for (int64_t c = b * p.block; c < end;) {
      // The block's part in one word.
      const int64_t stop = min(end, (c / 32 + 1) * 32);
      const uint32_t bits = static_cast<uint32_t>((uint64_t{1} << (stop - c)) - 1) << (c % 32);
      atomicOr(mask + c / 32, bits);
      c = stop;
    }
  }
}

}  // namespace

Status topk(KernelContext& ctx, const TopkParams& p) {
  if (p.k == 0) return {};
  ArenaScope scope(*ctx.arena);
  const Scores in{p.scores, p.score_stride, p.mask, p.mask_stride, p.columns};
  return select("topk", ctx, in, p.rows, p.columns, p.k, p.indices);
}

Status candidate_blocks(KernelContext& ctx, const CandidateBlocksParams& p) {
  ArenaScope scope(*ctx.arena);
  const int64_t blocks = ceil_div(p.columns, p.block);
  const int64_t keep = std::min(p.keep, blocks);
  int32_t* kept = ctx.arena->allocate<int32_t>(p.rows * keep);
  if (keep > 0) {
    const BlockScores in{p.scores, p.score_stride, p.visible, p.columns, p.block};
    CEDAR_CHECK_OK(select("candidate_blocks", ctx, in, p.rows, blocks, keep, kept));
  }
  mark_kernel<<<static_cast<unsigned>(p.rows), kMarkThreads, 0, stream_of(ctx)>>>(p, kept, keep);
  return launched("candidate_blocks");
}

}  // namespace cedar::kernels::cuda
