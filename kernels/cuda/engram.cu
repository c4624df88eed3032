#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// One block a table row: its codes, then a scale for each 32.
__global__ void __launch_bounds__(kThreads) widen_kernel(EngramWidenParams p) {
  const int64_t row = blockIdx.x;
  const uint8_t* codes = p.rows_packed + row * packed_row_bytes(RowFormat::q8, p.dim);
  const uint8_t* scales = codes + p.dim;
  for (int64_t c = threadIdx.x; c < p.dim; c += kThreads) {
    // Rounded: a table's scale may be so small that a value is below bf16's normal numbers.
    p.out[row * p.dim + c] =
        Bf16(__fmul_rn(e4m3_to_float(codes[c]), e8m0_to_float(scales[c / kQ8Group])));
  }
}

/// Copy blockIdx.y of row blockIdx.x.
__global__ void __launch_bounds__(kThreads) gate_kernel(EngramGateParams p, float scale) {
  __shared__ float partial[kThreads / kWarp];
  const int64_t row = blockIdx.x, copy = blockIdx.y;
  if (p.image_mask != nullptr && p.image_mask[row] != 0) return;
  Bf16* x = p.x + (row * p.copies + copy) * p.d;
  const Bf16* keys = p.kv + row * (p.copies + 1) * p.d;
  const Bf16* key = keys + copy * p.d;
  const Bf16* value = keys + p.copies * p.d;
  float x_squares = 0, key_squares = 0, products = 0;
  for (int64_t c = threadIdx.x; c < p.d; c += kThreads) {
    const float a = widen(x[c]), k = widen(key[c]);
    const float weight =
        __fmul_rn(widen(p.q_weight[copy * p.d + c]), widen(p.k_weight[copy * p.d + c]));
    x_squares = fmaf(a, a, x_squares);
    key_squares = fmaf(k, k, key_squares);
    products = fmaf(__fmul_rn(a, weight), k, products);
  }
  const float x_factor = norm_factor(block_sum<kThreads>(x_squares, partial), p.d, p.eps);
  const float key_factor = norm_factor(block_sum<kThreads>(key_squares, partial), p.d, p.eps);
  const float sum = block_sum<kThreads>(products, partial);
  const float dot = __fmul_rn(__fmul_rn(sum, __fmul_rn(x_factor, key_factor)), scale);
  const float gate = sigmoid(copysignf(__fsqrt_rn(fmaxf(fabsf(dot), 1e-6f)), dot));
  for (int64_t c = threadIdx.x; c < p.d; c += kThreads) {
    x[c] = Bf16(__fadd_rn(widen(x[c]), __fmul_rn(gate, widen(value[c]))));
  }
}

}  // namespace

Status engram_widen(KernelContext& ctx, const EngramWidenParams& p) {
  widen_kernel<<<static_cast<unsigned>(p.rows * p.columns), kThreads, 0, stream_of(ctx)>>>(p);
  return launched("engram_widen");
}

Status engram_gate(KernelContext& ctx, const EngramGateParams& p) {
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.d)));
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(p.copies));
  gate_kernel<<<grid, kThreads, 0, stream_of(ctx)>>>(p, scale);
  return launched("engram_gate");
}

}  // namespace cedar::kernels::cuda
