// Any shape, on the vector units: f32 weights, which no tensor core multiplies exactly, and bf16 shapes that
// 16-byte copies cannot read. A block computes 32 outputs for 32 rows; every thread sums its outputs over the
// inputs in increasing order, so a row's result does not depend on the others.

#include "core/units.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/linear_plan.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kTile = 32, kInputs = 32, kThreads = 256;

template <class W>
struct Args {
  const W* weight;
  const Bf16* x;
  int64_t x_stride;
  LinearOutput out;
  int rows, outputs, inputs;
  int group_outputs;  // outputs that read the same inputs
};

__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ float widen(Bf16 v) { return static_cast<float>(v); }

template <class W>
__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ Args<W> a) {
  // One column more than inputs: the threads of a warp read a column of `w`.
  __shared__ float w[kTile][kInputs + 1], x[kTile][kInputs + 1];
  const int first_output = blockIdx.x * kTile, first_row = blockIdx.y * kTile;
  const Bf16* group_x = a.x + int64_t{first_output / a.group_outputs} * a.inputs;
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;  // output; rows group + 8 i
  float sums[4] = {};
  for (int k = 0; k < a.inputs; k += kInputs) {
    for (int i = threadIdx.x; i < kTile * kInputs; i += kThreads) {
      const int line = i / kInputs, at = k + i % kInputs;
      const bool inside = at < a.inputs;
      w[line][i % kInputs] = inside && first_output + line < a.outputs
                                 ? widen(a.weight[(first_output + line) * int64_t{a.inputs} + at])
                                 : 0.0f;
      x[line][i % kInputs] = inside && first_row + line < a.rows
                                 ? widen(group_x[(first_row + line) * a.x_stride + at])
                                 : 0.0f;
    }
    __syncthreads();
#pragma unroll 8
    for (int i = 0; i < kInputs; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) sums[r] = fmaf(w[lane][i], x[group + 8 * r][i], sums[r]);
    }
    __syncthreads();
  }
  const int output = first_output + lane;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int row = first_row + group + 8 * r;
    if (row >= a.rows || output >= a.outputs) continue;
    const int64_t at = row * a.out.stride + output;
    if (a.out.f32) {
      static_cast<float*>(a.out.y)[at] = sums[r];
    } else {
      static_cast<Bf16*>(a.out.y)[at] = Bf16(sums[r]);
    }
  }
}

template <class W>
Status launch(KernelContext& ctx, const PackedWeight& weight, const Bf16* x, int64_t x_stride,
              int64_t rows, int64_t groups, const LinearOutput& out) {
  Args<W> a{};
  a.weight = weight.codes.as<W>();
  a.x = x;
  a.x_stride = x_stride;
  a.out = out;
  a.rows = static_cast<int>(rows);
  a.outputs = static_cast<int>(weight.out);
  a.inputs = static_cast<int>(weight.in);
  a.group_outputs = static_cast<int>(weight.out / groups);
  const dim3 grid(static_cast<unsigned>(ceil_div(weight.out, kTile)),
                  static_cast<unsigned>(ceil_div(rows, kTile)));
  multiply<W><<<grid, kThreads, 0, stream_of(ctx)>>>(a);
  return launched("linear");
}

}  // namespace

Status linear_plain(KernelContext& ctx, const PackedWeight& weight, const Bf16* x, int64_t x_stride,
                    int64_t rows, int64_t groups, const LinearOutput& out) {
  if (weight.format == WeightFormat::f32) {
    return launch<float>(ctx, weight, x, x_stride, rows, groups, out);
  }
  return launch<Bf16>(ctx, weight, x, x_stride, rows, groups, out);
}

}  // namespace cedar::kernels::cuda
