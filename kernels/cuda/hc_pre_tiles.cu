// A cluster of blocks shares a tile of rows: each block takes an eighth of the columns of every copy, for the
// products with fn, for the sum of squares and for the collapsed row alike, so that x is read from memory
// once. The blocks meet over distributed shared memory.
//
// The products run on the tensor cores: x is bf16, and fn is split on the way into three bf16 that add up to
// it. Each copy's share of a block is summed in four quarters, whatever the tile, so that a row's sums do not
// depend on how many rows there are.

#include "kernels/cuda/hc_pre_tiles.h"
#include "kernels/cuda/level.h"

#include <algorithm>

#include "core/units.h"
#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/hc_coefficients.h"
#include "kernels/cuda/hc_post.h"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/wgmma.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kOutputTiles = kHcOutputs / 8;
constexpr int kCluster = 8;
constexpr int kChunk = 64;  // columns of a swizzled row
constexpr int kQuarters = 4;
// Sums of a row: the outputs, the squares of x, the squares of the collapsed row.
constexpr int kSums = kHcOutputs + 2;
// Floats of a row of fn in shared memory: a half warp's float2 lie in different banks.
constexpr int kFnStride = kChunk + 8;

struct Sums {
  float high[kOutputTiles][4] = {};  // of the leading parts of fn
  float low[kOutputTiles][4] =
      {};  // of the rest, so that adding little to much does not round every time
};

__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// 16 rows by 16 columns of a swizzled tile, from row `row` and 16-byte piece `piece` on.
__device__ __forceinline__ void load_rows(uint32_t tile, int row, int piece, uint32_t (&a)[4]) {
  const int lane = threadIdx.x % kWarp;
  const uint32_t from = tile + swizzled(row + lane % 16, piece + lane / 16);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(from)
               : "memory");
}

/// A pair of fp32 as the sum of three pairs of bf16.
struct Split {
  uint32_t part[3];
  __device__ __forceinline__ explicit Split(float2 x) {
#pragma unroll
    for (uint32_t& word : part) {
      word = pack_bf16(x.x, x.y);
      x.x -= low_half(word);
      x.y -= high_half(word);
    }
  }
};

/// One step of 16 columns for kTiles tiles of 16 rows. fn(output tile, column) gives this lane's pairs.
template <int kTiles, class Fn>
__device__ __forceinline__ void multiply_step(Sums (&sums)[kTiles], const uint32_t (&a)[kTiles][4],
                                              const Fn& fn) {
#pragma unroll
  for (int t = 0; t < kOutputTiles; ++t) {
    const Split first(fn(t, 0)), second(fn(t, 8));
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      multiply(sums[m].high[t], a[m], first.part[0], second.part[0]);
      multiply(sums[m].low[t], a[m], first.part[1], second.part[1]);
      multiply(sums[m].low[t], a[m], first.part[2], second.part[2]);
    }
  }
}

/// A tile of rows. Few: all columns lie in shared memory at once, and warps share out the quarters, too.
template <int kRows>
struct Tile {
  static constexpr bool kFew = kRows == 16;
  static constexpr int kThreads = kFew ? 512 : 256;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kStageBytes = kHcCopies * kRows * kChunk * 2;
  static constexpr int kParts = kFew ? kHcCopies * kQuarters : kHcCopies;  // of a row's products
  static constexpr int kPartFloats = kParts * kRows * kHcOutputs;
  static constexpr int kFnFloats = kFew ? 0 : kHcCopies * kHcOutputs * kFnStride;

  /// Offsets in shared memory, for `chunks` of 64 columns in a block.
  struct Layout {
    int x, fn, u, parts, chunk_sums, block_sums, factors, bytes;
    __host__ __device__ explicit Layout(int chunks) {
      const int stages = kFew ? chunks : 2;
      x = 0;
      fn = x + stages * kStageBytes;
      u = fn + 2 * kFnFloats * 4;
      // The products' parts take the place of x, which is used up by then, where that is large enough.
      parts = kFew ? u + kRows * chunks * kChunk * 2 : x;
      chunk_sums = kFew ? parts + kPartFloats * 4 : u + kRows * chunks * kChunk * 2;
      block_sums = chunk_sums + 2 * kRows * chunks * 4;
      factors = block_sums + kRows * kSums * 4;
      bytes = factors + kRows * 4;
    }
  };
  static_assert(kFew || kPartFloats * 4 <= 2 * kStageBytes);
};

/// Starts the copy of chunk `chunk` of the block's columns: x, and fn where it goes through shared memory.
template <int kRows>
__device__ __forceinline__ void fetch_chunk(const HcPreParams& p, int64_t first, int64_t column,
                                            uint32_t x, uint32_t fn) {
  using T = Tile<kRows>;
  for (int i = threadIdx.x; i < kHcCopies * kRows * 8; i += T::kThreads) {
    const int copy = i / (kRows * 8), row = i / 8 % kRows, piece = i % 8;
    if (first + row >= p.rows) continue;  // what lies there makes sums that nobody reads
    const int64_t from = ((first + row) * kHcCopies + copy) * p.d + column + piece * 8;
    copy_async(x + copy * kRows * 128 + swizzled(row, piece), p.x + from, true);
  }
  if constexpr (!T::kFew) {
    for (int i = threadIdx.x; i < kHcCopies * kHcOutputs * 16; i += T::kThreads) {
      const int row = i / 16, piece = i % 16;
      const int64_t from =
          (row % kHcOutputs * int64_t{kHcCopies} + row / kHcOutputs) * p.d + column + piece * 4;
      copy_async(fn + (row * kFnStride + piece * 4) * 4, p.weights.fn + from, true);
    }
  }
  copy_async_commit();
}

/// Instead of the copy of x: the end of the sublayer before makes it, for memory and for this block.
template <int kRows>
__device__ __forceinline__ void finish_rows(const PostArgs& after, int64_t first, int64_t base,
                                            int chunks, uint8_t* x) {
  const HcPostParams& p = after.p;
  for (int i = threadIdx.x; i < kRows * chunks * 8; i += Tile<kRows>::kThreads) {
    const int row = i / (chunks * 8), chunk = i / 8 % chunks, piece = i % 8;
    if (first + row >= p.rows) return;  // what lies there makes sums that nobody reads
    const int64_t c = base + chunk * kChunk + piece * 8;
    uint8_t* to = x + chunk * Tile<kRows>::kStageBytes + swizzled(row, piece);
    finish_columns<8, kHcCopies>(after, first + row, c, [&](int copy, const float(&sum)[8]) {
      const uint4 v = round8(sum);
      store8(p.x_out + ((first + row) * kHcCopies + copy) * p.d + c, v);
      *reinterpret_cast<uint4*>(to + copy * kRows * 128) = v;
    });
  }
}

/// The collapsed values and both sums of squares of eight columns of a row; eight neighbouring lanes share a
/// chunk.
template <int kRows>
__device__ __forceinline__ void collapse_piece(const HcPreParams& p, const uint8_t* x,
                                               int64_t first, int row, int piece, Bf16* u,
                                               float* x_sum, float* u_sum) {
  const float* weights = p.pre_in + min(first + row, p.rows - 1) * kHcCopies;
  float sum[8], x_squares = 0, u_squares = 0;
#pragma unroll
  for (int j = 0; j < kHcCopies; ++j) {
    float v[8];
    widen8(*reinterpret_cast<const uint4*>(x + j * kRows * 128 + swizzled(row, piece)), v);
    const float weight = weights[j];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x_squares = fmaf(v[i], v[i], x_squares);
      const float part = __fmul_rn(v[i], weight);
      sum[i] = j == 0 ? part : __fadd_rn(sum[i], part);
    }
  }
#pragma unroll
  for (float& v : sum) {
    v = round_to_bf16(v);
    u_squares = fmaf(v, v, u_squares);
  }
  store8(u + piece * 8, round8(sum));
#pragma unroll
  for (int step = 1; step < 8; step *= 2) {
    x_squares += __shfl_xor_sync(kAllLanes, x_squares, step);
    u_squares += __shfl_xor_sync(kAllLanes, u_squares, step);
  }
  if (piece == 0) {
    *x_sum = x_squares;
    *u_sum = u_squares;
  }
}

/// Rows [blockIdx.x / kCluster * kRows, ...). `chunks`: of 64 columns, of a block.
template <int kRows>
__global__ void CEDAR_CLUSTER_OF(kCluster) __launch_bounds__(Tile<kRows>::kThreads, 1)
    pre_kernel(const __grid_constant__ HcPreParams p, const __grid_constant__ PostArgs after,
               int chunks) {
#if CEDAR_HOPPER_CODE
  using T = Tile<kRows>;
  extern __shared__ __align__(1024) uint8_t storage[];
  const typename T::Layout at(chunks);
  Bf16* u = reinterpret_cast<Bf16*>(storage + at.u);                      // [rows, chunks * 64]
  float* parts = reinterpret_cast<float*>(storage + at.parts);            // [parts, rows, outputs]
  float* chunk_sums = reinterpret_cast<float*>(storage + at.chunk_sums);  // [2, rows, chunks]
  float* block_sums = reinterpret_cast<float*>(storage + at.block_sums);  // [rows, sums]
  float* factors = reinterpret_cast<float*>(storage + at.factors);        // [rows]

  const int rank = static_cast<int>(cluster_rank());
  const int64_t first = blockIdx.x / kCluster * int64_t{kRows};
  const int columns = chunks * kChunk;
  const int64_t base = int64_t{rank} * columns;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, c = lane % 4;
  const uint32_t x_address = shared_address(storage + at.x),
                 fn_address = shared_address(storage + at.fn);
  const auto collapse = [&](int chunk, const uint8_t* x, int i) {
    const int row = i / 8;
    collapse_piece<kRows>(p, x, first, row, i % 8, u + row * columns + chunk * kChunk,
                          chunk_sums + row * chunks + chunk,
                          chunk_sums + (kRows + row) * chunks + chunk);
  };
  const auto keep_part = [&](int part, int row, const float(&total)[kOutputTiles][4]) {
#pragma unroll
    for (int t = 0; t < kOutputTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* to = parts + (part * kRows + row + g + 8 * half) * kHcOutputs + 8 * t + 2 * c;
        to[0] = total[t][2 * half];
        to[1] = total[t][2 * half + 1];
      }
    }
  };

  if constexpr (T::kFew) {
    if (after.p.x_out != nullptr) {
      finish_rows<kRows>(after, first, base, chunks, storage + at.x);
      if (after.ring.chunk_rows != nullptr) {
        for (int64_t row = first + rank; row < min(first + kRows, p.rows); row += kCluster) {
          keep_window_row(after.ring, row, T::kThreads);
        }
      }
    } else {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        fetch_chunk<kRows>(p, first, base + chunk * kChunk, x_address + chunk * T::kStageBytes, 0);
      }
      copy_async_wait<0>();
    }
    __syncthreads();
    const int copy = warp % kHcCopies, quarter = warp / kHcCopies;
    const float* fn = p.weights.fn + (int64_t{g} * kHcCopies + copy) * p.d + base + 2 * c;
    Sums sums[1];
#pragma unroll 2
    for (int i = 0; i < chunks; ++i) {
      const int step = quarter * chunks + i;  // of 16 columns
      uint32_t a[1][4];
      load_rows(x_address + step / 4 * T::kStageBytes + copy * kRows * 128, 0, step % 4 * 2, a[0]);
      multiply_step<1>(sums, a, [&](int t, int k) {
        return __ldg(reinterpret_cast<const float2*>(fn + t * 8 * kHcCopies * p.d + step * 16 + k));
      });
    }
#pragma unroll
    for (int t = 0; t < kOutputTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[0].high[t][i] += sums[0].low[t][i];
    }
    keep_part(copy * kQuarters + quarter, 0, sums[0].high);
    for (int i = threadIdx.x; i < chunks * kRows * 8; i += T::kThreads) {
      const int chunk = i / (kRows * 8);
      collapse(chunk, storage + at.x + chunk * T::kStageBytes, i % (kRows * 8));
    }
    __syncthreads();
  } else {
    const int copy = warp / 2, row = warp % 2 * 32;
    Sums sums[2];
    float total[2][kOutputTiles][4] = {};
    int steps = 0;
    fetch_chunk<kRows>(p, first, base, x_address, fn_address);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int stage = chunk % 2;
      copy_async_wait<0>();
      __syncthreads();
      if (chunk + 1 < chunks) {
        fetch_chunk<kRows>(p, first, base + (chunk + 1) * kChunk,
                           x_address + (stage ^ 1) * T::kStageBytes,
                           fn_address + (stage ^ 1) * T::kFnFloats * 4);
      }
      const float* fn = reinterpret_cast<const float*>(storage + at.fn) + stage * T::kFnFloats +
                        (copy * kHcOutputs + g) * kFnStride + 2 * c;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        uint32_t a[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          load_rows(x_address + stage * T::kStageBytes + copy * kRows * 128, row + 16 * m, step * 2,
                    a[m]);
        }
        multiply_step<2>(sums, a, [&](int t, int k) {
          return *reinterpret_cast<const float2*>(fn + t * 8 * kFnStride + step * 16 + k);
        });
        if (++steps < chunks) continue;
        steps = 0;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int t = 0; t < kOutputTiles; ++t) {
#pragma unroll
            for (int i = 0; i < 4; ++i) total[m][t][i] += sums[m].high[t][i] + sums[m].low[t][i];
          }
          sums[m] = Sums();
        }
      }
      for (int i = threadIdx.x; i < kRows * 8; i += T::kThreads) {
        collapse(chunk, storage + at.x + stage * T::kStageBytes, i);
      }
    }
    __syncthreads();
    keep_part(copy, row, total[0]);
    keep_part(copy, row + 16, total[1]);
    __syncthreads();
  }

  for (int i = threadIdx.x; i < kRows * kSums; i += T::kThreads) {
    const int row = i / kSums, o = i % kSums;
    float sum = 0;
    if (o < kHcOutputs) {
      for (int copy = 0; copy < kHcCopies; ++copy) {
        const auto part = [&](int index) { return parts[(index * kRows + row) * kHcOutputs + o]; };
        float share;
        if constexpr (T::kFew) {
          share = 0;
          for (int quarter = 0; quarter < kQuarters; ++quarter)
            share += part(copy * kQuarters + quarter);
        } else {
          share = part(copy);
        }
        sum += share;
      }
    } else {
      const float* from = chunk_sums + ((o - kHcOutputs) * kRows + row) * chunks;
      for (int chunk = 0; chunk < chunks; ++chunk) sum += from[chunk];
    }
    block_sums[i] = sum;
  }
  __syncwarp();
  cluster_barrier();

  const auto cluster_sum = [&](int i) {
    float sum = 0;
#pragma unroll
    for (int b = 0; b < kCluster; ++b) {
      sum += load_remote(remote_address(shared_address(block_sums + i), b));
    }
    return sum;
  };
  if (threadIdx.x < kRows) {
    factors[threadIdx.x] =
        norm_factor(cluster_sum(threadIdx.x * kSums + kHcOutputs + 1), p.d, p.norm_eps);
  }
  // The blocks share out the rows' coefficients.
  __syncwarp();
  for (int r = rank + kCluster * warp; r < kRows && first + r < p.rows; r += kCluster * T::kWarps) {
    write_coefficients(p, first + r, cluster_sum(r * kSums + min(lane, kSums - 1)));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * columns / 8; i += T::kThreads) {
    const int row = i / (columns / 8), column = i % (columns / 8) * 8;
    if (first + row >= p.rows) break;
    float v[8], w[8];
    widen8(load8(u + row * columns + column), v);
    widen8(load8(p.norm_weight + base + column), w);
    const float factor = factors[row];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = __fmul_rn(w[k], __fmul_rn(v[k], factor));
    const uint4 rounded = round8(v);
    const int64_t to = (first + row) * p.d + base + column;
    store8(p.u + to, rounded);
    // Whole groups of four lanes come here together: a block's columns are a multiple of 32.
    if (p.u_values != nullptr) store8(p.u_values + to, q8_values_of(rounded));
  }
  // Nobody leaves while others may still read its sums.
  __syncwarp();
  cluster_barrier();
#endif
}

template <int kRows>
Status launch_cluster(KernelContext& ctx, const HcPreParams& p, const PostArgs& after) {
  const int chunks = static_cast<int>(p.d / (kCluster * kChunk));
  const auto shared = static_cast<size_t>(typename Tile<kRows>::Layout(chunks).bytes);
  CEDAR_CHECK_OK(allow_shared("hc_pre", pre_kernel<kRows>, shared));
  const auto blocks = static_cast<unsigned>(ceil_div(p.rows, kRows) * kCluster);
  pre_kernel<kRows><<<blocks, Tile<kRows>::kThreads, shared, stream_of(ctx)>>>(p, after, chunks);
  return launched("hc_pre");
}

}  // namespace

bool fits_tiles(const HcPreParams& p) {
  // More columns than the release has would not fit into shared memory.
  return p.copies == kHcCopies && p.d % (kCluster * kChunk) == 0 && p.d <= 5120 && aligned16(p.x) &&
         aligned16(p.weights.fn) && aligned16(p.norm_weight) && aligned16(p.u);
}

Status hc_pre_tiles(KernelContext& ctx, const HcPreParams& p) {
  // Small tiles while the device can take all of them at once.
  constexpr int64_t kFewRows = 256;
  PostArgs after{};
  if (p.after != nullptr) after = post_args(*p.after);
  if (p.rows <= kFewRows && has_vectors(after)) return launch_cluster<16>(ctx, p, after);
  if (p.after != nullptr) CEDAR_CHECK_OK(cuda::hc_post(ctx, *p.after));
  return p.rows <= kFewRows ? launch_cluster<16>(ctx, p, {}) : launch_cluster<64>(ctx, p, {});
}

}  // namespace cedar::kernels::cuda
