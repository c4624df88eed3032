// Rows of logits in slices: a block edits a slice in shared memory, divides it, adds noise. Then the selection of
// topk.cu, and the sums, whose exponents need the peak of the whole row first.

#include <algorithm>

#include "core/units.h"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"
#include "kernels/draw_noise.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSlice = 2048;
constexpr float kLargest = 3.402823466e38f;

__device__ __forceinline__ float never() { return __int_as_float(0xff800000); }

/// Partial results of one slice of one row.
struct Slice {
  double sum, raw_sum, mass;
  float peak, raw_peak;
  int nan;
};

struct Args {
  LogitCandidatesParams p;
  float* values;
  float* keys;
  Slice* slices;  // [rows, count]
  int count;
  const int32_t* chosen;      // [rows, k]
  const int32_t* raw_chosen;  // [rows, raw_k]
};

template <class T, class Combine>
__device__ __forceinline__ T block_reduce(T v, T* partial, const Combine& combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v = combine(v, __shfl_xor_sync(kAllLanes, v, step));
  __syncthreads();
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = v;
  __syncthreads();
  T all = partial[0];
  for (int w = 1; w < kThreads / kWarp; ++w) all = combine(all, partial[w]);
  return all;
}
struct Greater {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Plus {
  __device__ double operator()(double a, double b) const { return a + b; }
};

/// Grid: (slices, rows).
__global__ void __launch_bounds__(kThreads) edit_slice(const __grid_constant__ Args a) {
  __shared__ float slice[kSlice];
  __shared__ float partial[kThreads / kWarp];
  const LogitCandidatesParams& p = a.p;
  const int64_t row = blockIdx.y;
  const DrawRow draw = p.draws[row];
  const int64_t begin = blockIdx.x * int64_t{kSlice};
  const int size = static_cast<int>(min(int64_t{kSlice}, p.columns - begin));
  const float* logits = p.logits + row * p.columns + begin;
  const uint32_t* mask = draw.mask < 0 ? nullptr : p.masks + draw.mask * p.mask_stride;
  float raw_peak = never();
  int nan = 0;
  for (int i = threadIdx.x; i < size; i += kThreads) {
    const float l = logits[i];
    nan |= l != l ? 1 : 0;
    const float bounded = fminf(l, kLargest);
    raw_peak = fmaxf(raw_peak, bounded);
    const int64_t c = begin + i;
    const bool allowed = mask == nullptr || (mask[c / 32] >> (c % 32) & 1u) != 0;
    slice[i] = allowed ? bounded : never();
  }
  nan = __syncthreads_or(nan);
  for (int i = threadIdx.x; i < draw.edits; i += kThreads) {
    const LogitEdit edit = p.edits[draw.first_edit + i];
    const int64_t at = edit.token - begin;
    if (at < 0 || at >= size) continue;
    float l = slice[at];
    if ((edit.rules & LogitEdit::kNever) != 0) l = never();
    l = __fadd_rn(l, edit.bias);
    if ((edit.rules & LogitEdit::kSeen) != 0) {
      l = l > 0 ? __fdiv_rn(l, draw.repetition) : __fmul_rn(l, draw.repetition);
    }
    if ((edit.rules & LogitEdit::kCounted) != 0) {
      const float less =
          __fadd_rn(__fmul_rn(draw.frequency, static_cast<float>(edit.count)), draw.presence);
      l = __fsub_rn(l, less);
    }
    slice[at] = l;
  }
  __syncthreads();
  float peak = never();
  for (int i = threadIdx.x; i < size; i += kThreads) {
    const float value = __fdiv_rn(slice[i], draw.temperature);
    peak = fmaxf(peak, value);
    float key = value;
    if (draw.kind == DrawKind::noisy && value > never()) {
      const double u = draw_uniform(draw.key, draw.position, static_cast<uint64_t>(begin + i));
      key = __fadd_rn(value, static_cast<float>(-log(-log(u))));
    }
    a.values[row * p.columns + begin + i] = value;
    a.keys[row * p.columns + begin + i] = key;
  }
  peak = block_reduce(peak, partial, Greater());
  raw_peak = block_reduce(raw_peak, partial, Greater());
  if (threadIdx.x == 0) {
    Slice& out = a.slices[row * a.count + blockIdx.x];
    out.peak = peak;
    out.raw_peak = raw_peak;
    out.nan = nan;
  }
}

/// The same in every thread.
__device__ __forceinline__ float row_peak(const Args& a, int64_t row, bool raw, float* partial) {
  float peak = never();
  for (int i = threadIdx.x; i < a.count; i += kThreads) {
    const Slice& slice = a.slices[row * a.count + i];
    peak = fmaxf(peak, raw ? slice.raw_peak : slice.peak);
  }
  return block_reduce(peak, partial, Greater());
}

__device__ __forceinline__ double exp_of_difference(float value, float from) {
  return exp(static_cast<double>(__fsub_rn(value, from)));
}

__device__ __forceinline__ bool has_sums(const DrawRow& draw) {
  return draw.kind == DrawKind::ranked;
}

/// Grid: (slices, rows).
__global__ void __launch_bounds__(kThreads) sum_slice(const __grid_constant__ Args a) {
  __shared__ float partial[kThreads / kWarp];
  __shared__ double sums[kThreads / kWarp];
  const LogitCandidatesParams& p = a.p;
  const int64_t row = blockIdx.y;
  const bool ranked = has_sums(p.draws[row]), raw = p.raw_k > 0;
  const float peak = ranked ? row_peak(a, row, false, partial) : 0;
  const float raw_peak = raw ? row_peak(a, row, true, partial) : 0;
  const int64_t begin = blockIdx.x * int64_t{kSlice};
  const int64_t end = min(begin + kSlice, p.columns);
  double sum = 0, raw_sum = 0;
  for (int64_t c = begin + threadIdx.x; c < end; c += kThreads) {
    if (ranked) sum += exp_of_difference(a.values[row * p.columns + c], peak);
    if (raw) {
      raw_sum += exp_of_difference(fminf(p.logits[row * p.columns + c], kLargest), raw_peak);
    }
  }
  sum = block_reduce(sum, sums, Plus());
  raw_sum = block_reduce(raw_sum, sums, Plus());
  if (threadIdx.x == 0) {
    Slice& out = a.slices[row * a.count + blockIdx.x];
    out.sum = sum;
    out.raw_sum = raw_sum;
  }
}

/// Of a ranked row; the same in every thread.
__device__ __forceinline__ double row_sum(const Args& a, int64_t row, double* sums) {
  double sum = 0;
  for (int i = threadIdx.x; i < a.count; i += kThreads) sum += a.slices[row * a.count + i].sum;
  return block_reduce(sum, sums, Plus());
}

/// Grid: (slices, rows).
__global__ void __launch_bounds__(kThreads) weigh_slice(const __grid_constant__ Args a) {
  __shared__ float partial[kThreads / kWarp];
  __shared__ double sums[kThreads / kWarp];
  const LogitCandidatesParams& p = a.p;
  const int64_t row = blockIdx.y;
  const DrawRow draw = p.draws[row];
  if (!has_sums(draw)) return;
  const float peak = row_peak(a, row, false, partial);
  const float total = __fadd_rn(peak, static_cast<float>(log(row_sum(a, row, sums))));
  const float least = __fadd_rn(peak, draw.floor);
  const int64_t begin = blockIdx.x * int64_t{kSlice};
  const int64_t end = min(begin + kSlice, p.columns);
  double mass = 0;
  for (int64_t c = begin + threadIdx.x; c < end; c += kThreads) {
    const float value = a.values[row * p.columns + c];
    if (value >= least) mass += exp_of_difference(value, total);
  }
  mass = block_reduce(mass, sums, Plus());
  if (threadIdx.x == 0) a.slices[row * a.count + blockIdx.x].mass = mass;
}

/// One block a row.
__global__ void __launch_bounds__(kThreads) collect_row(const __grid_constant__ Args a) {
  __shared__ float partial[kThreads / kWarp];
  __shared__ double sums[kThreads / kWarp];
  const LogitCandidatesParams& p = a.p;
  const int64_t row = blockIdx.x;
  const bool ranked = has_sums(p.draws[row]);
  const float* logits = p.logits + row * p.columns;
  for (int64_t i = threadIdx.x; i < p.k; i += kThreads) {
    const int32_t token = a.chosen[row * p.k + i];
    LogitCandidate& out = p.candidates[row * p.k + i];
    out.token = token;
    out.value = token < 0 ? 0 : a.values[row * p.columns + token];
    out.raw = token < 0 ? 0 : fminf(logits[token], kLargest);
  }
  for (int64_t i = threadIdx.x; i < p.raw_k; i += kThreads) {
    const int32_t token = a.raw_chosen[row * p.raw_k + i];
    LogitCandidate& out = p.raw_best[row * p.raw_k + i];
    out.token = token;
    out.value = out.raw = token < 0 ? 0 : fminf(logits[token], kLargest);
  }
  const float peak = row_peak(a, row, false, partial);
  const float raw_peak = row_peak(a, row, true, partial);
  double raw_sum = 0, mass = 0;
  int nan = 0;
  for (int i = threadIdx.x; i < a.count; i += kThreads) {
    const Slice& slice = a.slices[row * a.count + i];
    if (p.raw_k > 0) raw_sum += slice.raw_sum;
    if (ranked) mass += slice.mass;
    nan |= slice.nan;
  }
  nan = __syncthreads_or(nan);
  raw_sum = block_reduce(raw_sum, sums, Plus());
  mass = block_reduce(mass, sums, Plus());
  const double sum = ranked ? row_sum(a, row, sums) : 0;
  if (threadIdx.x == 0) {
    DrawStats out;
    out.sum = sum;
    out.mass = mass;
    out.raw_sum = raw_sum;
    out.peak = peak;
    out.total = ranked ? __fadd_rn(peak, static_cast<float>(log(sum))) : 0;
    out.raw_peak = raw_peak;
    out.nan = nan;
    p.stats[row] = out;
  }
}

Status best_of(KernelContext& ctx, const LogitCandidatesParams& p, const float* scores, int64_t k,
               int32_t* indices) {
  TopkParams best;
  best.scores = scores;
  best.score_stride = best.columns = p.columns;
  best.indices = indices;
  best.rows = p.rows;
  best.k = k;
  return cuda::topk(ctx, best);
}

}  // namespace

Status logit_candidates(KernelContext& ctx, const LogitCandidatesParams& p) {
  const ArenaScope scope(*ctx.arena);
  Args a{};
  a.p = p;
  a.count = static_cast<int>(ceil_div(p.columns, kSlice));
  a.values = ctx.arena->allocate<float>(p.rows * p.columns);
  a.keys = ctx.arena->allocate<float>(p.rows * p.columns);
  a.slices = ctx.arena->allocate<Slice>(p.rows * a.count);
  int32_t* chosen = ctx.arena->allocate<int32_t>(p.rows * p.k);
  int32_t* raw_chosen = ctx.arena->allocate<int32_t>(p.rows * std::max<int64_t>(p.raw_k, 1));
  a.chosen = chosen;
  a.raw_chosen = raw_chosen;
  const dim3 grid(static_cast<unsigned>(a.count), static_cast<unsigned>(p.rows));
  const cudaStream_t stream = stream_of(ctx);
  edit_slice<<<grid, kThreads, 0, stream>>>(a);
  CEDAR_CHECK_OK(best_of(ctx, p, a.keys, p.k, chosen));
  if (p.raw_k > 0) CEDAR_CHECK_OK(best_of(ctx, p, p.logits, p.raw_k, raw_chosen));
  if (p.sums || p.raw_k > 0) sum_slice<<<grid, kThreads, 0, stream>>>(a);
  if (p.sums) weigh_slice<<<grid, kThreads, 0, stream>>>(a);
  collect_row<<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(a);
  return launched("logit_candidates");
}

}  // namespace cedar::kernels::cuda
