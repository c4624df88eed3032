// The start of a sublayer. With four copies a cluster of blocks shares a few rows: each block takes an eighth
// of the columns of every copy, for the products with fn, for the sum of squares and for the collapsed row
// alike, so that x is read from memory once. The blocks meet over distributed shared memory. Everything else
// takes one block a row.

#include <algorithm>

#include "core/units.h"
#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/hc_coefficients.h"
#include "kernels/cuda/hc_pre_tiles.h"
#include "kernels/cuda/level.h"
#include "kernels/cuda/linear_ops.h"

namespace cedar::kernels::cuda {
namespace {

// ---- four copies ------------------------------------------------------------------------------------------

constexpr int kCluster = 8;
// A thread owns four columns of every copy and six outputs: 24 float4 of fn in flight hide the L2's latency.
constexpr int kOutputGroups = 4;
constexpr int kGroupOutputs = kHcOutputs / kOutputGroups;
constexpr int kMostColumnThreads = 160;  // 5120 columns: 160 threads x 4 columns x 8 blocks
constexpr int kMostWarps = kMostColumnThreads / kWarp;
// Sums of a row: the outputs, the squares of x, the squares of the collapsed row.
constexpr int kSums = kHcOutputs + 2;

struct Columns {
  uint2 words[kHcCopies];
  __device__ float at(int copy, int i) const {
    const uint32_t word = i < 2 ? words[copy].x : words[copy].y;
    return i % 2 == 0 ? low_half(word) : high_half(word);
  }
};

/// Rows [blockIdx.x / kCluster * kRows, ...). A row's sums are taken in the same order whatever kRows is.
template <int kRows>
__global__ void CEDAR_CLUSTER_OF(kCluster) __launch_bounds__(kOutputGroups* kMostColumnThreads, 1)
    pre_kernel(HcPreParams p, int column_threads) {
#if CEDAR_HOPPER_CODE
  let_next_launch_start();
  extern __shared__ uint8_t storage[];
  __shared__ float partial[kRows * kSums][kMostWarps];
  __shared__ float block_sums[kRows * kSums];
  __shared__ float factors[kRows];
  uint2* collapsed = reinterpret_cast<uint2*>(storage);  // [kRows, units]: four bf16 each

  const int rank = static_cast<int>(cluster_rank());
  const int64_t first = blockIdx.x / kCluster * int64_t{kRows};
  const int units = static_cast<int>(p.d / (kCluster * 4));
  const int group = threadIdx.x / column_threads;
  const int thread = threadIdx.x % column_threads;
  const int warp = thread / kWarp;

  float dots[kRows][kGroupOutputs] = {};
  float squares[kRows] = {};
  for (int unit = thread; unit < units; unit += column_threads) {
    const int64_t c = (int64_t{rank} * units + unit) * 4;
    Columns x[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = min(first + r, p.rows - 1);
#pragma unroll
      for (int j = 0; j < kHcCopies; ++j) {
        x[r].words[j] = *reinterpret_cast<const uint2*>(p.x + (row * kHcCopies + j) * p.d + c);
      }
    }
    const float* fn = p.weights.fn + int64_t{group} * kGroupOutputs * kHcCopies * p.d + c;
#pragma unroll
    for (int o = 0; o < kGroupOutputs; ++o) {
#pragma unroll
      for (int j = 0; j < kHcCopies; ++j) {
        const float4 f = __ldg(reinterpret_cast<const float4*>(fn + (o * kHcCopies + j) * p.d));
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          dots[r][o] = fmaf(f.x, x[r].at(j, 0), dots[r][o]);
          dots[r][o] = fmaf(f.y, x[r].at(j, 1), dots[r][o]);
          dots[r][o] = fmaf(f.z, x[r].at(j, 2), dots[r][o]);
          dots[r][o] = fmaf(f.w, x[r].at(j, 3), dots[r][o]);
        }
      }
    }
    if (group == 0) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < 4 * kHcCopies; ++i) {
          squares[r] = fmaf(x[r].at(i / 4, i % 4), x[r].at(i / 4, i % 4), squares[r]);
        }
      }
    } else if (group == 1) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float* weights = p.pre_in + min(first + r, p.rows - 1) * kHcCopies;
        float sum[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sum[i] = __fmul_rn(x[r].at(0, i), weights[0]);
#pragma unroll
          for (int j = 1; j < kHcCopies; ++j) {
            sum[i] = __fadd_rn(sum[i], __fmul_rn(x[r].at(j, i), weights[j]));
          }
          sum[i] = round_to_bf16(sum[i]);
          squares[r] = fmaf(sum[i], sum[i], squares[r]);
        }
        collapsed[r * units + unit] =
            make_uint2(pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]));
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int o = 0; o < kGroupOutputs; ++o) {
      const float sum = warp_sum(dots[r][o]);
      if (threadIdx.x % kWarp == 0) partial[r * kSums + group * kGroupOutputs + o][warp] = sum;
    }
    const float sum = warp_sum(squares[r]);
    if (threadIdx.x % kWarp == 0 && group < 2) partial[r * kSums + kHcOutputs + group][warp] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kSums; i += blockDim.x) {
    float sum = partial[i][0];
    for (int w = 1; w < column_threads / kWarp; ++w) sum += partial[i][w];
    block_sums[i] = sum;
  }
  __syncwarp();
  cluster_barrier();

  const auto cluster_sum = [&](int i) {
    float sum = 0;
#pragma unroll
    for (int b = 0; b < kCluster; ++b) {
      sum += load_remote(remote_address(shared_address(&block_sums[i]), b));
    }
    return sum;
  };
  // The last warp does this block's share of the coefficients while the others finish the collapsed rows.
  const int last_warp = static_cast<int>(blockDim.x) / kWarp - 1;
  if (static_cast<int>(threadIdx.x) / kWarp == last_warp) {
    for (int r = rank; r < kRows && first + r < p.rows; r += kCluster) {
      const int lane = threadIdx.x % kWarp;
      write_coefficients(p, first + r, cluster_sum(r * kSums + min(lane, kSums - 1)));
    }
  } else if (threadIdx.x < kRows) {
    factors[threadIdx.x] =
        norm_factor(cluster_sum(threadIdx.x * kSums + kHcOutputs + 1), p.d, p.norm_eps);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * units; i += blockDim.x) {
    const int r = i / units;
    if (first + r >= p.rows) break;
    const int64_t c = (int64_t{rank} * units + i % units) * 4;
    const uint2 w = *reinterpret_cast<const uint2*>(p.norm_weight + c);
    const uint2 v = collapsed[i];
    const float factor = factors[r];
    const auto scaled = [factor](float weight, float value) {
      return __fmul_rn(weight, __fmul_rn(value, factor));
    };
    *reinterpret_cast<uint2*>(p.u + (first + r) * p.d + c) = make_uint2(
        pack_bf16(scaled(low_half(w.x), low_half(v.x)), scaled(high_half(w.x), high_half(v.x))),
        pack_bf16(scaled(low_half(w.y), low_half(v.y)), scaled(high_half(w.y), high_half(v.y))));
  }
  // Nobody leaves while others may still read its sums.
  __syncwarp();
  cluster_barrier();
#endif
}

template <int kRows>
Status launch_cluster(KernelContext& ctx, const HcPreParams& p) {
  const int64_t units = p.d / (kCluster * 4);
  const int threads =
      static_cast<int>(std::min<int64_t>(align_up(units, kWarp), kMostColumnThreads));
  const size_t shared = static_cast<size_t>(kRows * units) * sizeof(uint2);
  CEDAR_CHECK_OK(allow_shared("hc_pre", pre_kernel<kRows>, shared));
  const auto blocks = static_cast<unsigned>(ceil_div(p.rows, kRows) * kCluster);
  pre_kernel<kRows><<<blocks, kOutputGroups * threads, shared, stream_of(ctx)>>>(p, threads);
  return launched("hc_pre");
}

// ---- any number of copies -----------------------------------------------------------------------------------

constexpr int kThreads = 256;
constexpr int kMostOutputs = static_cast<int>(kMaxHcCopies * (2 + kMaxHcCopies));

/// One thread; `m` holds the row's normalised products.
__device__ void split(const HcPreParams& p, int64_t row, const float* m, float* mix) {
  const int n = static_cast<int>(p.copies);
  const float* base = p.weights.base;
  const float* scale = p.weights.scale;
  for (int j = 0; j < n; ++j) {
    p.pre[row * n + j] =
        __fadd_rn(sigmoid(__fadd_rn(__fmul_rn(m[j], scale[0]), base[j])), p.hc_eps);
    p.post[row * n + j] =
        __fmul_rn(2.0f, sigmoid(__fadd_rn(__fmul_rn(m[n + j], scale[1]), base[n + j])));
  }
  for (int i = 0; i < n * n; ++i) {
    mix[i] = __fadd_rn(__fmul_rn(m[2 * n + i], scale[2]), base[2 * n + i]);
  }
  const auto divide = [&](int begin, int stride, float inside, float outside) {
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += mix[begin + i * stride];
    for (int i = 0; i < n; ++i) {
      mix[begin + i * stride] = __fdiv_rn(mix[begin + i * stride], sum + inside) + outside;
    }
  };
  for (int j = 0; j < n; ++j) {
    float largest = mix[j * n];
    for (int k = 1; k < n; ++k) largest = fmaxf(largest, mix[j * n + k]);
    for (int k = 0; k < n; ++k) mix[j * n + k] = exp_exact(__fsub_rn(mix[j * n + k], largest));
    divide(j * n, 1, 0, p.hc_eps);
  }
  for (int k = 0; k < n; ++k) divide(k, n, p.hc_eps, 0);
  for (int i = 1; i < p.sinkhorn_iterations; ++i) {
    for (int j = 0; j < n; ++j) divide(j * n, 1, p.hc_eps, 0);
    for (int k = 0; k < n; ++k) divide(k, n, p.hc_eps, 0);
  }
  for (int i = 0; i < n * n; ++i) p.mix[row * n * n + i] = mix[i];
}

/// One block a row.
__global__ void __launch_bounds__(kThreads) plain_pre_kernel(HcPreParams p) {
  __shared__ float partial[kThreads / kWarp];
  __shared__ float m[kMostOutputs], mix[kMaxHcCopies * kMaxHcCopies];
  const int64_t row = blockIdx.x;
  const int64_t n = p.copies * p.d;
  const Bf16* x = p.x + row * n;
  float squares = 0;
  for (int64_t c = threadIdx.x; c < n; c += kThreads)
    squares = fmaf(widen(x[c]), widen(x[c]), squares);
  const float factor = norm_factor(block_sum<kThreads>(squares, partial), n, p.norm_eps);
  const int outputs = static_cast<int>(p.copies * (2 + p.copies));
  for (int o = 0; o < outputs; ++o) {
    float dot = 0;
    for (int64_t c = threadIdx.x; c < n; c += kThreads) {
      dot = fmaf(p.weights.fn[o * n + c], widen(x[c]), dot);
    }
    dot = block_sum<kThreads>(dot, partial);
    if (threadIdx.x == 0) m[o] = __fmul_rn(dot, factor);
  }
  Bf16* u = p.u + row * p.d;
  float u_squares = 0;
  for (int64_t c = threadIdx.x; c < p.d; c += kThreads) {
    float sum = 0;
    for (int64_t j = 0; j < p.copies; ++j) {
      const float part = __fmul_rn(widen(x[j * p.d + c]), p.pre_in[row * p.copies + j]);
      sum = j == 0 ? part : __fadd_rn(sum, part);
    }
    u[c] = Bf16(sum);
    u_squares = fmaf(widen(u[c]), widen(u[c]), u_squares);
  }
  const float u_factor = norm_factor(block_sum<kThreads>(u_squares, partial), p.d, p.norm_eps);
  for (int64_t c = threadIdx.x; c < p.d; c += kThreads) {
    u[c] = Bf16(__fmul_rn(widen(p.norm_weight[c]), __fmul_rn(widen(u[c]), u_factor)));
  }
  if (threadIdx.x == 0) split(p, row, m, mix);
}

}  // namespace

Status hc_pre(KernelContext& ctx, const HcPreParams& p) {
  const bool hopper = on_hopper(ctx);
  if (hopper && fits_tiles(p)) return hc_pre_tiles(ctx, p);
  const bool in_clusters = hopper && p.copies == kHcCopies && p.d % (kCluster * 4) == 0 &&
                           aligned16(p.x) && aligned16(p.weights.fn) && aligned16(p.norm_weight) &&
                           aligned16(p.u);
  if (p.after != nullptr) CEDAR_CHECK_OK(cuda::hc_post(ctx, *p.after));
  // One row a cluster while the device has room for all of them.
  constexpr int64_t kFewRows = 16;
  if (!in_clusters) {
    plain_pre_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream_of(ctx)>>>(p);
    CEDAR_CHECK_OK(launched("hc_pre"));
  } else if (p.rows <= kFewRows) {
    CEDAR_CHECK_OK(launch_cluster<1>(ctx, p));
  } else {
    CEDAR_CHECK_OK(launch_cluster<2>(ctx, p));
  }
  if (p.u_values == nullptr) return {};
  QuantizeQ8Params q;
  q.x = p.u;
  q.x_stride = q.columns = p.d;
  q.out.values = p.u_values;
  q.rows = p.rows;
  return cuda::quantize_q8(ctx, q);
}

}  // namespace cedar::kernels::cuda
