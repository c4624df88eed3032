// A block of threads attends one query after another, each with all its heads: 64 heads are the
// rows of the matrix instruction. Two warpgroups multiply and share the channels: each sums its own
// 256, as keys and as values, and they exchange the halves of the scores. Two more decode packed
// rows, 64 at a time, into two buffers.
//
// Window rows and chosen rows do not share a block of 64: a block is decoded in one format. Decoded
// rows are their values times 2^-16 (a bf16 factor can then hold every scale together with the power
// of two that the bits of E2M1 or E4M3 lack); the softmax scale and the last division give it back.

#include "kernels/cuda/sparse_attention_tiles.h"
#include "kernels/cuda/level.h"

#include <algorithm>

#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/packed_rows.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/wgmma.h"
#include "kernels/cuda/wgmma_values.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kHeads = 64;
constexpr int kDim = 512;
constexpr int kHalfDim = kDim / 2;
constexpr int kKeys = 64;  // of a block
constexpr int kGroupThreads = 128;
constexpr int kConsumers = 2 * kGroupThreads;
// Decoding is a chain of dependent instructions: it takes twice the warps to keep up with the products.
constexpr int kProducers = 2 * kGroupThreads;
constexpr int kWarpRows = kKeys / (kProducers / kWarp);  // of a block
constexpr int kThreads = kConsumers + kProducers;
// Registers of a thread: what all are given at the start, shared out anew.
constexpr int kConsumerRegisters = 208, kProducerRegisters = 48;
constexpr int kMostChosen = 512;
constexpr int kPairs = 32;            // rotated
constexpr int kTileBytes = 64 * 128;  // 64 rows of 64 channels
constexpr int kHalfBytes = 4 * kTileBytes;
constexpr float kValueScale = 0x1p16f;
constexpr float kLog2e = 1.44269504f;

struct Shared {
  uint8_t q[2 * kHalfBytes];
  uint8_t rows[2][2 * kHalfBytes];
  // Of each warpgroup: its half of the products; at the end, its output.
  float4 scores[2][8][kGroupThreads];
  int32_t chosen[kMostChosen];
  float2 rotations[2][kPairs];  // of this query and the next
  uint64_t full[2], empty[2];
  int32_t block_rows[2];  // of the buffers; 0: the query attends to nothing
  int32_t block_is_last[2];
};

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// What one query attends to, as blocks of 64 rows.
struct List {
  const SparseAttentionParams* p;
  const int32_t* chosen;  // shared memory
  int64_t sequence;
  WindowSpan window;
  int ring_rows, window_rows, chosen_rows;

  __device__ int window_blocks() const { return (window_rows + kKeys - 1) / kKeys; }
  __device__ int blocks() const { return window_blocks() + (chosen_rows + kKeys - 1) / kKeys; }
  __device__ bool in_window(int block) const { return block < window_blocks(); }
  /// Rows of a block.
  __device__ int rows(int block) const {
    const int left = in_window(block) ? window_rows - block * kKeys
                                      : chosen_rows - (block - window_blocks()) * kKeys;
    return min(left, kKeys);
  }
  /// Row i of a block; null past its end.
  __device__ const uint8_t* row(int block, int i) const {
    if (block >= blocks() || i >= rows(block)) return nullptr;
    if (!in_window(block)) {
      const PagedRows& pages = p->global;
      const auto j = static_cast<uint32_t>(chosen[(block - window_blocks()) * kKeys + i]);
      const auto per_page = static_cast<uint32_t>(pages.rows_per_page);
      const int64_t page = pages.page_table[sequence * pages.max_pages + j / per_page];
      return pages.base + page * pages.page_bytes + pages.offset_bytes +
             j % per_page * pages.row_bytes;
    }
    const int entry = block * kKeys + i;
    if (entry < ring_rows) {
      const auto position = static_cast<uint32_t>(window.ring_begin + entry);
      return p->rings.base + window.slot * p->rings.slot_stride_bytes +
             position % static_cast<uint32_t>(p->rings.window) * p->rings.row_bytes;
    }
    return p->chunk_rows +
           int64_t{window.chunk_begin + entry - ring_rows} * packed_row_bytes(RowFormat::q8, kDim);
  }
};

/// The set entries of a list, in order; returns how many. One warp.
__device__ int compact_chosen(const int32_t* list, int64_t k, int32_t* out) {
  const int lane = threadIdx.x % kWarp;
  int count = 0;
  for (int base = 0; base < k; base += kWarp) {
    const int32_t entry = base + lane < k ? list[base + lane] : -1;
    const uint32_t set = __ballot_sync(kAllLanes, entry >= 0);
    if (entry >= 0) out[count + __popc(set & ((1u << lane) - 1))] = entry;
    count += __popc(set);
  }
  return count;
}

/// The running softmax of heads g and g + 8 of a warp's 16, in powers of two.
struct Softmax {
  float maximum[2] = {-1e30f, -1e30f};
  float total[2] = {};  // of this lane's columns
  float alpha[2];

  /// s: the block's scores. p: what its values are to be multiplied with, in a's fragments.
  __device__ __forceinline__ void step(float (&s)[32], int count, float scale,
                                       uint32_t (&p)[4][4]) {
    const int c = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = maximum[half];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& x = s[4 * j + 2 * half + i];
          x = 8 * j + 2 * c + i < count ? x * scale : -__int_as_float(0x7f800000);
          largest = fmaxf(largest, x);
        }
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      alpha[half] = exp2_fast(maximum[half] - largest);
      maximum[half] = largest;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float low = exp2_fast(s[4 * j + 2 * half] - largest);
        const float high = exp2_fast(s[4 * j + 2 * half + 1] - largest);
        sum += low + high;
        p[j / 2][j % 2 * 2 + half] = pack_bf16(low, high);
      }
      total[half] = fmaf(total[half], alpha[half], sum);
    }
  }
};

__device__ __forceinline__ void rescale(float (&o)[64], const float (&alpha)[2]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) o[i] *= alpha[i % 4 / 2];
}

/// All threads of both consumers.
__device__ __forceinline__ void sync_consumers() { sync_warps(1, kConsumers); }

/// Both warpgroups' halves of the scores added up, in both.
__device__ __forceinline__ void exchange(Shared& shared, int group, float (&s)[32]) {
  const int thread = threadIdx.x % kGroupThreads;
  // What lies there has been read.
  sync_consumers();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    shared.scores[group][i][thread] =
        make_float4(s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]);
  }
  sync_consumers();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 other = shared.scores[1 - group][i][thread];
    s[4 * i] += other.x;
    s[4 * i + 1] += other.y;
    s[4 * i + 2] += other.z;
    s[4 * i + 3] += other.w;
  }
}

/// Counts blocks over the whole life of the kernel: which buffer, and which of its phases.
struct Turn {
  uint32_t number = 0;
  __device__ int buffer() const { return static_cast<int>(number % 2); }
  __device__ uint32_t phase() const { return number / 2 & 1; }
};

__device__ __forceinline__ void produce(const SparseAttentionParams& p, Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x - kConsumers) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Turn turn;
  const auto announce = [&](int rows, bool last) {
    const int buffer = turn.buffer();
    if (threadIdx.x == kConsumers) {
      shared.block_rows[buffer] = rows;
      shared.block_is_last[buffer] = last ? 1 : 0;
    }
    fence_for_tensor_cores();
    barrier_arrive(shared_address(&shared.full[buffer]));
    ++turn.number;
  };
  const auto wait_for_buffer = [&] {
    if (turn.number < 2) return;
    barrier_wait(shared_address(&shared.empty[turn.buffer()]), turn.phase() ^ 1);
  };
  for (int64_t query = blockIdx.x; query < p.rows; query += gridDim.x) {
    List list;
    list.p = &p;
    list.chosen = shared.chosen;
    list.sequence = p.topk != nullptr ? p.sequences[query] : 0;
    list.window = p.window[query];
    list.ring_rows = static_cast<int>(list.window.ring_end - list.window.ring_begin);
    list.window_rows = list.ring_rows + list.window.chunk_end - list.window.chunk_begin;
    // No warp may still read the last query's list. Each makes the same one: cheaper than waiting
    // for one of them.
    sync_warps(2, kProducers);
    list.chosen_rows =
        p.topk != nullptr ? compact_chosen(p.topk + query * p.k, p.k, shared.chosen) : 0;
    sync_warps(2, kProducers);
    const int blocks = list.blocks();
    if (blocks == 0) {
      wait_for_buffer();
      announce(0, true);
      continue;
    }
    const int own_row = kWarpRows * warp + lane % kWarpRows;
    const auto address_of = [&](int block) {
      return reinterpret_cast<unsigned long long>(list.row(block, own_row));
    };
    unsigned long long next = address_of(0);
    for (int block = 0; block < blocks; ++block) {
      const unsigned long long address = next;
      const uint32_t to = shared_address(shared.rows[turn.buffer()]) + warp * kWarpRows * 128;
      // Rows are asked for before the buffer is free.
      if (list.in_window(block)) {
        PackedRows<RowFormat::q8> raw;
        raw.load(address, 0);
        next = address_of(block + 1);
        wait_for_buffer();
        raw.decode(to, 0);
        raw.load(address, raw.kRows);
        raw.decode(to, raw.kRows);
      } else {
        PackedRows<RowFormat::q4n> raw;
        raw.load(address, 0);
        next = address_of(block + 1);
        wait_for_buffer();
        raw.decode(to, 0);
      }
      announce(list.rows(block), block + 1 == blocks);
    }
  }
}

/// Starts the copy of a query's heads; the consumers' threads.
__device__ __forceinline__ void fetch_query(const SparseAttentionParams& p, Shared& shared,
                                            int64_t query) {
  const Bf16* q = p.q + query * kHeads * kDim;
  for (int i = threadIdx.x; i < kHeads * kDim / 8; i += kConsumers) {
    const int head = i / (kDim / 8), piece = i % (kDim / 8);
    copy_async(shared_address(shared.q) + piece / 8 * kTileBytes + swizzled(head, piece % 8),
               q + i * 8, true);
  }
  copy_async_commit();
}

/// The query's last 64 channels, a tile of their own, turned in place; the consumers' threads. `rotations` turn back.
__device__ __forceinline__ void rotate_query(Shared& shared, const float2* rotations) {
  uint8_t* tile = shared.q + 7 * kTileBytes;
  for (int i = threadIdx.x; i < kHeads * kPairs; i += kConsumers) {
    const int head = i / kPairs, pair = i % kPairs;
    auto* word = reinterpret_cast<uint32_t*>(tile + swizzled(head, pair / 4) + pair % 4 * 4);
    const float2 back = rotations[pair];
    const float2 turned = rotate(low_half(*word), high_half(*word), make_float2(back.x, -back.y));
    *word = pack_bf16(turned.x, turned.y);
  }
}

/// o * factor to memory, rotated back; through shared memory, so that rows leave in whole lines.
__device__ __forceinline__ void write_output(const SparseAttentionParams& p, Shared& shared,
                                             int group, const float (&o)[2][64],
                                             const float (&factor)[2], const float2* rotations,
                                             Bf16* o_row) {
  const int part = static_cast<int>(threadIdx.x) % kGroupThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint8_t* staged = reinterpret_cast<uint8_t*>(shared.scores[group]);
  const bool rotate_back = p.inv_freq != nullptr && group == 1;
  // The other warpgroup has read this one's scores.
  sync_consumers();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == 1) sync_warps(3 + group, kGroupThreads);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t word =
            pack_bf16(o[half][4 * j + 2 * i] * factor[i], o[half][4 * j + 2 * i + 1] * factor[i]);
        if (half == 1 && j >= 8 && rotate_back) {
          const float2 turned =
              rotate(low_half(word), high_half(word), rotations[4 * (j - 8) + lane % 4]);
          word = pack_bf16(turned.x, turned.y);
        }
        const int head = 16 * part + lane / 4 + 8 * i;
        *reinterpret_cast<uint32_t*>(staged + j / 8 * kTileBytes + swizzled(head, j % 8) +
                                     lane % 4 * 4) = word;
      }
    }
    sync_warps(3 + group, kGroupThreads);
    for (int i = threadIdx.x % kGroupThreads; i < kHeads * 16; i += kGroupThreads) {
      const int head = i / 16, piece = i % 16;
      store8(o_row + head * kDim + group * kHalfDim + half * 128 + piece * 8,
             *reinterpret_cast<const uint4*>(staged + piece / 8 * kTileBytes +
                                             swizzled(head, piece % 8)));
    }
  }
}

__device__ __forceinline__ void consume(const SparseAttentionParams& p, Shared& shared) {
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int part = static_cast<int>(threadIdx.x) % kGroupThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t own_q = shared_address(shared.q) + group * kHalfBytes;
  const float scale = p.scale * (kValueScale * kLog2e);
  Turn turn;
  const auto release = [&](int buffer) {
    if (lane == 0) barrier_arrive(shared_address(&shared.empty[buffer]));
  };
  int parity = 0;
  fetch_query(p, shared, blockIdx.x);
  for (int64_t query = blockIdx.x; query < p.rows; query += gridDim.x, parity ^= 1) {
    if (p.inv_freq != nullptr && threadIdx.x < kPairs) {
      shared.rotations[parity][threadIdx.x] =
          rotation(p.positions[query], p.inv_freq[threadIdx.x], true);
    }
    copy_async_wait<0>();
    if (p.rotate_q) {
      sync_consumers();
      rotate_query(shared, shared.rotations[parity]);
    }
    fence_for_tensor_cores();
    sync_consumers();
    Bf16* o_row = p.o + query * kHeads * kDim;

    // The block in hand.
    int buffer = 0, rows_left = 0;
    bool last = false;
    const auto take_block = [&] {
      buffer = turn.buffer();
      barrier_wait(shared_address(&shared.full[buffer]), turn.phase());
      ++turn.number;
      rows_left = shared.block_rows[buffer];
      last = shared.block_is_last[buffer] != 0;
    };
    const auto fetch_next_query = [&] {
      if (query + gridDim.x < p.rows) fetch_query(p, shared, query + gridDim.x);
    };
    take_block();
    if (rows_left == 0) {
      release(buffer);
      fetch_next_query();
      for (int i = threadIdx.x; i < kHeads * kDim / 8; i += kConsumers) {
        store8(o_row + i * 8, make_uint4(0, 0, 0, 0));
      }
      continue;
    }

    float o[2][64];
#pragma unroll
    for (int i = 0; i < 64; ++i) o[0][i] = o[1][i] = 0;
    Softmax softmax;
    for (;;) {
      const uint32_t rows = shared_address(shared.rows[buffer]) + group * kHalfBytes;
      float s[32];
      wgmma_fence();
      wgmma_scores<kTileBytes>(s, tile_descriptor(own_q), tile_descriptor(rows));
      wgmma_commit();
      wgmma_wait<0>();
      settle(s);
      exchange(shared, group, s);
      // Both warpgroups are through with the query: exchange() has met them.
      if (last) fetch_next_query();
      uint32_t weights[4][4];
      softmax.step(s, rows_left, scale, weights);
      if (__any_sync(kAllLanes, softmax.alpha[0] != 1.0f || softmax.alpha[1] != 1.0f)) {
        rescale(o[0], softmax.alpha);
        rescale(o[1], softmax.alpha);
      }
      wgmma_fence();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint64_t b = value_descriptor(rows + 2 * half * kTileBytes, kTileBytes);
#pragma unroll
        for (int t = 0; t < 4; ++t) wgmma_values(o[half], weights[t], b + value_step(t));
      }
      wgmma_commit();
      // Left under way into the next turn of the loop, it would make the compiler wait at every
      // instruction.
      wgmma_wait<0>();
      settle(o[0]);
      settle(o[1]);
      release(buffer);
      if (last) break;
      take_block();
    }
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total = softmax.total[i];
      total += __shfl_xor_sync(kAllLanes, total, 1);
      total += __shfl_xor_sync(kAllLanes, total, 2);
      const float sink = p.sink[16 * part + lane / 4 + 8 * i];
      factor[i] = kValueScale / (total + exp2_fast(fmaf(sink, kLog2e, -softmax.maximum[i])));
    }
    write_output(p, shared, group, o, factor, shared.rotations[parity], o_row);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    sparse_tiles_kernel(const __grid_constant__ SparseAttentionParams p) {
#if CEDAR_HOPPER_CODE
  extern __shared__ __align__(1024) uint8_t storage[];
  Shared& shared = *reinterpret_cast<Shared*>(storage);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared.full[i]), kProducers);
      barrier_init(shared_address(&shared.empty[i]), kConsumers / kWarp);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    produce(p, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    consume(p, shared);
  }
#endif
}

}  // namespace

bool fits_tiles(const SparseAttentionParams& p) {
  const auto pieces = [](const void* base, int64_t a, int64_t b) {
    return (static_cast<int64_t>(reinterpret_cast<uintptr_t>(base)) | a | b) % 16 == 0;
  };
  return p.heads == kHeads && p.head_dim == kDim && (p.topk == nullptr || p.k <= kMostChosen) &&
         (p.inv_freq == nullptr || p.rotary_dim == 2 * kPairs) && aligned16(p.q) &&
         aligned16(p.o) && aligned16(p.chunk_rows) &&
         pieces(p.rings.base, p.rings.slot_stride_bytes, p.rings.row_bytes) &&
         pieces(p.global.base, p.global.page_bytes | p.global.offset_bytes, p.global.row_bytes);
}

Status sparse_attention_tiles(KernelContext& ctx, const SparseAttentionParams& p) {
  CEDAR_CHECK_OK(allow_shared("sparse_attention", sparse_tiles_kernel, sizeof(Shared)));
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(p.rows, multiprocessors()));
  sparse_tiles_kernel<<<blocks, kThreads, sizeof(Shared), stream_of(ctx)>>>(p);
  return launched("sparse_attention");
}

}  // namespace cedar::kernels::cuda
