// The vision tower's attention and element-wise operations.

#include "core/units.h"
#include "kernels/cuda/attention_block.h"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"

namespace cedar::kernels::cuda {
namespace {

/// Queries [blockIdx.x * 4, ...) of head blockIdx.y against every row.
__global__ void __launch_bounds__(kPlainThreads) dense_kernel(DenseAttentionParams p) {
  extern __shared__ uint8_t storage[];
  const int head_dim = static_cast<int>(p.head_dim), pairs = head_dim / 2;
  const int64_t width = p.heads * p.head_dim;
  const int64_t first = blockIdx.x * int64_t{kPlainQueries};
  const Bf16* columns = p.qkv + blockIdx.y * p.head_dim;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const PlainState s(storage, head_dim, true);
  for (int i = threadIdx.x; i < kPlainQueries * head_dim; i += kPlainThreads) {
    const int64_t row = min(first + i / head_dim, p.rows - 1);
    s.q[i] = widen(columns[row * 3 * width + i % head_dim]);
    s.sums[i] = 0;
  }
  PlainSoftmax softmax;
  for (int64_t begin = 0; begin < p.rows; begin += kPlainKeys) {
    const int count = static_cast<int>(min(p.rows - begin, int64_t{kPlainKeys}));
    for (int i = warp; i < count; i += kPlainQueries) {
      const Bf16* row = columns + (begin + i) * 3 * width;
      const uint32_t* key = reinterpret_cast<const uint32_t*>(row + width);
      const uint32_t* value = reinterpret_cast<const uint32_t*>(row + 2 * width);
      const int at = i * PlainState::stride(head_dim);
      for (int w = lane; w < pairs; w += kWarp) {
        s.key_words[at + w] = key[w];
        s.value_words[at + w] = value[w];
      }
    }
    plain_attend(s, softmax, count, p.scale);
  }
  const int64_t row = first + warp;
  if (row >= p.rows) return;
  uint32_t* o = reinterpret_cast<uint32_t*>(p.o + row * width + blockIdx.y * p.head_dim);
  const float* sums = s.sums + warp * head_dim;
  for (int i = lane; i < pairs; i += kWarp) {
    o[i] = pack_bf16(sums[2 * i] / softmax.total, sums[2 * i + 1] / softmax.total);
  }
}

constexpr int kThreads = 256;

/// q and k of all heads are neighbours in a row: one block turns them all.
__global__ void __launch_bounds__(kThreads) rope_kernel(VisionRopeParams p) {
  const int64_t row = blockIdx.x;
  const int half = static_cast<int>(p.head_dim / 2);
  for (int i = threadIdx.x; i < 2 * p.heads * half; i += kThreads) {
    const int k = i % half;
    Bf16* head = p.qkv + (row * 3 * p.heads + i / half) * p.head_dim;
    const float2 turn = make_float2(p.cos[row * half + k], p.sin[row * half + k]);
    const float2 turned = rotate(widen(head[k]), widen(head[k + half]), turn);
    head[k] = Bf16(turned.x);
    head[k + half] = Bf16(turned.y);
  }
}

__device__ float gelu_erf(float x) {
  const double wide = static_cast<double>(x);
  return static_cast<float>(0.5 * wide * (1.0 + erf(wide * 0.70710678118654752440)));
}

__global__ void __launch_bounds__(kThreads) bias_kernel(BiasParams p) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= p.rows * p.columns) return;
  float value = p.sum != nullptr ? p.sum[i] : widen(p.x[i]);
  if (p.bias != nullptr) value = __fadd_rn(value, widen(p.bias[i % p.columns]));
  Bf16 y(value);
  if (p.activation == Activation::gelu_erf) y = Bf16(gelu_erf(widen(y)));
  if (p.residual != nullptr) y = Bf16(__fadd_rn(widen(y), widen(p.residual[i])));
  p.x[i] = y;
}

__global__ void __launch_bounds__(kThreads) silu_mul_kernel(SiluMulParams p) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= p.rows * p.columns) return;
  const Bf16* x = p.x + i / p.columns * 2 * p.columns + i % p.columns;
  const float gate = widen(x[0]);
  p.y[i] = Bf16(__fmul_rn(round_to_bf16(__fmul_rn(gate, sigmoid(gate))), widen(x[p.columns])));
}

unsigned element_blocks(int64_t count) { return static_cast<unsigned>(ceil_div(count, kThreads)); }

}  // namespace

Status dense_attention(KernelContext& ctx, const DenseAttentionParams& p) {
  const auto shared = static_cast<size_t>(PlainState::bytes(static_cast<int>(p.head_dim), true));
  CEDAR_CHECK_OK(allow_shared("dense_attention", dense_kernel, shared));
  const dim3 grid(static_cast<unsigned>(ceil_div(p.rows, kPlainQueries)),
                  static_cast<unsigned>(p.heads));
  dense_kernel<<<grid, kPlainThreads, shared, stream_of(ctx)>>>(p);
  return launched("dense_attention");
}

Status vision_rope(KernelContext& ctx, const VisionRopeParams& p) {
  rope_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream_of(ctx)>>>(p);
  return launched("vision_rope");
}

Status add_bias(KernelContext& ctx, const BiasParams& p) {
  bias_kernel<<<element_blocks(p.rows * p.columns), kThreads, 0, stream_of(ctx)>>>(p);
  return launched("add_bias");
}

Status silu_mul(KernelContext& ctx, const SiluMulParams& p) {
  silu_mul_kernel<<<element_blocks(p.rows * p.columns), kThreads, 0, stream_of(ctx)>>>(p);
  return launched("silu_mul");
}

}  // namespace cedar::kernels::cuda
