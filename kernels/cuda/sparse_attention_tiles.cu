// A block of threads attends one query with all its heads: 64 heads are the rows of the matrix instruction. Its two
// warpgroups share the channels: each decodes, multiplies and sums its own 256, as keys and as values, and they
// exchange the halves of the scores. Decoded rows lie in two buffers: while the tensor cores score one block of 64
// rows, the threads decode the next.
//
// Window rows and chosen rows do not share a block of 64: a block is decoded in one format. Decoded rows are their
// values times 2^-16 (a bf16 factor can then hold every scale together with the power of two that the bits of E2M1 or
// E4M3 lack); the softmax scale and the last division give it back.

#include "kernels/cuda/sparse_attention_tiles.h"
#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/wgmma.h"
#include "kernels/cuda/wgmma_values.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kHeads = 64;
constexpr int kDim = 512;
constexpr int kHalfDim = kDim / 2;
constexpr int kKeys = 64;  // of a block
constexpr int kThreads = 256;
constexpr int kGroupThreads = 128;
constexpr int kMostChosen = 512;
constexpr int kPairs = 32;            // rotated
constexpr int kTileBytes = 64 * 128;  // 64 rows of 64 channels
constexpr int kHalfBytes = 4 * kTileBytes;
constexpr float kValueScale = 0x1p16f;
constexpr float kLog2e = 1.44269504f;

struct Shared {
  uint8_t q[2 * kHalfBytes];
  uint8_t rows[2][2 * kHalfBytes];
  float4 scores[2][8][kGroupThreads];  // of each warpgroup: its half of the products
  int32_t chosen[kMostChosen];
  float2 rotations[kPairs];
};

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ void store_piece(uint32_t address, const uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

/// Eight E2M1 codes times an E4M3 scale to eight bf16.
__device__ __forceinline__ void decode_q4n(uint32_t x, uint32_t scale, uint32_t (&out)[4]) {
  constexpr uint32_t kSign = 0x80008000, kMagnitude = 0x01c001c0;
  // The code's bits stand for scale * 2^-120; 2^126 * 2^-16 are to be added to it.
  const float factor = __uint_as_float(scale << 20) * 0x1p120f * 0x1p110f;
  const uint32_t pair = __byte_perm(__float_as_uint(factor), 0, 0x3232);
  const uint32_t a = multiply_bf16x2(((x << 12) & kSign) | ((x << 6) & kMagnitude), pair);  // 0, 4
  const uint32_t b = multiply_bf16x2(((x << 8) & kSign) | ((x << 2) & kMagnitude), pair);   // 1, 5
  const uint32_t c = multiply_bf16x2(((x << 4) & kSign) | ((x >> 2) & kMagnitude), pair);   // 2, 6
  const uint32_t d = multiply_bf16x2((x & kSign) | ((x >> 6) & kMagnitude), pair);          // 3, 7
  out[0] = __byte_perm(a, b, 0x5410);
  out[1] = __byte_perm(c, d, 0x5410);
  out[2] = __byte_perm(a, b, 0x7632);
  out[3] = __byte_perm(c, d, 0x7632);
}

/// Eight E4M3 codes times an E8M0 scale to eight bf16.
__device__ __forceinline__ void decode_q8(uint32_t low, uint32_t high, uint32_t scale,
                                          uint32_t (&out)[4]) {
  constexpr uint32_t kSign = 0x80008000, kMagnitude = 0x07f007f0;
  // 2^(scale - 127) * 2^120 * 2^-16.
  const uint32_t bits = scale == 255 ? 0x7fc0u : min(scale + 104u, 254u) << 7;
  const uint32_t pair = bits * 0x10001u;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t x = i == 0 ? low : high;
    const uint32_t a = multiply_bf16x2(((x << 8) & kSign) | ((x << 4) & kMagnitude), pair);  // 0, 2
    const uint32_t b = multiply_bf16x2((x & kSign) | ((x >> 4) & kMagnitude), pair);         // 1, 3
    out[2 * i] = __byte_perm(a, b, 0x5410);
    out[2 * i + 1] = __byte_perm(a, b, 0x7632);
  }
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

__device__ __forceinline__ uint32_t load_word(const uint8_t* p) {
  return __ldg(reinterpret_cast<const uint32_t*>(p));
}

/// Decodes this warp's 16 rows of a block, the half of the channels that its warpgroup owns, to `to`. Lane r holds the
/// address of row r; lane l decodes channels 8 l ... of every row.
template <bool kWindow>
__device__ __forceinline__ void decode_rows(const uint8_t* mine, int half, int part, uint32_t to) {
  constexpr int kBatch = kWindow ? 8 : 16;
  const int lane = threadIdx.x % kWarp;
  const uint32_t base = to + lane / 8 * kTileBytes + part * 16 * 128;
  const auto address = reinterpret_cast<unsigned long long>(mine);
#pragma unroll
  for (int first = 0; first < 16; first += kBatch) {
    uint32_t low[kBatch], high[kWindow ? kBatch : 1], scale[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const auto* row =
          reinterpret_cast<const uint8_t*>(__shfl_sync(kAllLanes, address, first + i));
      low[i] = scale[i] = 0;
      if constexpr (kWindow) {
        high[i] = 0;
        if (row != nullptr) {
          low[i] = load_word(row + half * kHalfDim + 8 * lane);
          high[i] = load_word(row + half * kHalfDim + 8 * lane + 4);
          scale[i] = __ldg(row + kDim + half * (kHalfDim / 32) + lane / 4);
        }
      } else if (row != nullptr) {
        low[i] = load_word(row + half * (kHalfDim / 2) + 4 * lane);
        scale[i] = __ldg(row + kDim / 2 + half * (kHalfDim / 16) + lane / 2);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      uint32_t piece[4];
      if constexpr (kWindow) {
        decode_q8(low[i], high[i], scale[i], piece);
      } else {
        decode_q4n(low[i], scale[i], piece);
      }
      store_piece(base + swizzled(first + i, lane % 8), piece);
    }
  }
}

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

  /// s: the block's scores, replaced by what the values are to be multiplied with, in a's fragments.
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

/// Both warpgroups' halves of the scores added up, in both.
__device__ __forceinline__ void exchange(Shared& shared, int group, float (&s)[32]) {
  const int thread = threadIdx.x % kGroupThreads;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    shared.scores[group][i][thread] =
        make_float4(s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 other = shared.scores[1 - group][i][thread];
    s[4 * i] += other.x;
    s[4 * i + 1] += other.y;
    s[4 * i + 2] += other.z;
    s[4 * i + 3] += other.w;
  }
}

/// Query blockIdx.x.
__global__ void __launch_bounds__(kThreads, 1)
    sparse_tiles_kernel(const __grid_constant__ SparseAttentionParams p) {
  extern __shared__ __align__(1024) uint8_t storage[];
  Shared& shared = *reinterpret_cast<Shared*>(storage);
  const int64_t query = blockIdx.x;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int part = static_cast<int>(threadIdx.x) % kGroupThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;

  const Bf16* q = p.q + query * kHeads * kDim;
  for (int i = threadIdx.x; i < kHeads * kDim / 8; i += kThreads) {
    const int head = i / (kDim / 8), piece = i % (kDim / 8);
    copy_async(shared_address(shared.q) + piece / 8 * kTileBytes + swizzled(head, piece % 8),
               q + i * 8, true);
  }
  copy_async_commit();
  List list;
  list.p = &p;
  list.chosen = shared.chosen;
  list.sequence = p.topk != nullptr ? p.sequences[query] : 0;
  list.window = p.window[query];
  list.ring_rows = static_cast<int>(list.window.ring_end - list.window.ring_begin);
  list.window_rows = list.ring_rows + list.window.chunk_end - list.window.chunk_begin;
  // Each warp makes the same list: cheaper than waiting for one.
  list.chosen_rows =
      p.topk != nullptr ? compact_chosen(p.topk + query * p.k, p.k, shared.chosen) : 0;
  if (p.inv_freq != nullptr && threadIdx.x < kPairs) {
    shared.rotations[threadIdx.x] = rotation(p.positions[query], p.inv_freq[threadIdx.x], true);
  }
  __syncthreads();
  const int blocks = list.blocks();
  Bf16* o_row = p.o + query * kHeads * kDim;
  if (blocks == 0) {
    for (int i = threadIdx.x; i < kHeads * kDim / 8; i += kThreads) {
      store8(o_row + i * 8, make_uint4(0, 0, 0, 0));
    }
    return;
  }

  const uint32_t own_q = shared_address(shared.q) + group * kHalfBytes;
  const uint32_t own_rows[2] = {shared_address(shared.rows[0]) + group * kHalfBytes,
                                shared_address(shared.rows[1]) + group * kHalfBytes};
  const auto decode = [&](int block, const uint8_t* mine) {
    const uint32_t to = own_rows[block % 2];
    if (list.in_window(block)) {
      decode_rows<true>(mine, group, part, to);
    } else {
      decode_rows<false>(mine, group, part, to);
    }
  };
  const int own_row = 16 * part + lane % 16;
  decode(0, list.row(0, own_row));
  const uint8_t* next_row = list.row(1, own_row);
  copy_async_wait<0>();
  fence_for_tensor_cores();
  __syncthreads();

  float o[2][64];
#pragma unroll
  for (int i = 0; i < 64; ++i) o[0][i] = o[1][i] = 0;
  Softmax softmax;
  const float scale = p.scale * (kValueScale * kLog2e);
  for (int block = 0; block < blocks; ++block) {
    const uint32_t rows = own_rows[block % 2];
    float s[32];
#pragma unroll
    for (float& x : s) x = 0;
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const uint64_t a = tile_descriptor(own_q + t * kTileBytes);
      const uint64_t b = tile_descriptor(rows + t * kTileBytes);
#pragma unroll
      for (int k = 0; k < 4; ++k) Wgmma<64>::ss(s, a + descriptor_step(k), b + descriptor_step(k));
    }
    wgmma_commit();
    // The other buffer is free once the previous block's values are summed, by all four warps.
    wgmma_wait<1>();
    sync_warps(1 + group, kGroupThreads);
    if (block + 1 < blocks) {
      decode(block + 1, next_row);
      next_row = list.row(block + 2, own_row);
      fence_for_tensor_cores();
    }
    wgmma_wait<0>();
    settle(s);
    settle(o[0]);
    settle(o[1]);
    // Everyone has read the last exchange, and the next block's rows are written.
    __syncthreads();
    exchange(shared, group, s);
    uint32_t weights[4][4];
    softmax.step(s, list.rows(block), scale, weights);
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
  }
  wgmma_wait<0>();
  settle(o[0]);
  settle(o[1]);
  sync_warps(1 + group, kGroupThreads);

  float inverse[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float total = softmax.total[i];
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    const float sink = p.sink[16 * part + lane / 4 + 8 * i];
    inverse[i] = kValueScale / (total + exp2_fast(fmaf(sink, kLog2e, -softmax.maximum[i])));
  }
  // Through shared memory, so that rows leave in whole lines. The tiles belong to this warpgroup alone.
  const bool rotate_back = p.inv_freq != nullptr && group == 1;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t word =
            pack_bf16(o[half][4 * j + 2 * i] * inverse[i], o[half][4 * j + 2 * i + 1] * inverse[i]);
        if (half == 1 && j >= 8 && rotate_back) {
          const float2 turned =
              rotate(low_half(word), high_half(word), shared.rotations[4 * (j - 8) + lane % 4]);
          word = pack_bf16(turned.x, turned.y);
        }
        const int head = 16 * part + lane / 4 + 8 * i;
        const uint32_t to = (2 * half + j / 8) * kTileBytes + swizzled(head, j % 8) + lane % 4 * 4;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(own_rows[0] + to), "r"(word) : "memory");
      }
    }
  }
  sync_warps(1 + group, kGroupThreads);
  const uint8_t* staged = shared.rows[0] + group * kHalfBytes;
  for (int i = threadIdx.x % kGroupThreads; i < kHeads * kHalfDim / 8; i += kGroupThreads) {
    const int head = i / (kHalfDim / 8), piece = i % (kHalfDim / 8);
    store8(o_row + head * kDim + group * kHalfDim + piece * 8,
           *reinterpret_cast<const uint4*>(staged + piece / 8 * kTileBytes +
                                           swizzled(head, piece % 8)));
  }
}

}  // namespace

bool fits_tiles(const SparseAttentionParams& p) {
  const auto words = [](const void* base, int64_t a, int64_t b) {
    return (static_cast<int64_t>(reinterpret_cast<uintptr_t>(base)) | a | b) % 4 == 0;
  };
  return p.heads == kHeads && p.head_dim == kDim && (p.topk == nullptr || p.k <= kMostChosen) &&
         (p.inv_freq == nullptr || p.rotary_dim == 2 * kPairs) && aligned16(p.q) &&
         aligned16(p.o) && words(p.rings.base, p.rings.slot_stride_bytes, p.rings.row_bytes) &&
         words(p.chunk_rows, 0, 0) &&
         words(p.global.base, p.global.page_bytes | p.global.offset_bytes, p.global.row_bytes);
}

Status sparse_attention_tiles(KernelContext& ctx, const SparseAttentionParams& p) {
  CEDAR_CHECK_OK(allow_shared("sparse_attention", sparse_tiles_kernel, sizeof(Shared)));
  sparse_tiles_kernel<<<static_cast<unsigned>(p.rows), kThreads, sizeof(Shared), stream_of(ctx)>>>(
      p);
  return launched("sparse_attention");
}

}  // namespace cedar::kernels::cuda
