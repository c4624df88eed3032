#include <algorithm>

#include "core/units.h"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// Pairs of one block: enough to pay for the table's sines.
constexpr int64_t kPairsPerBlock = 1024;

/// Heads [blockIdx.y * heads_per_block, ...) of row blockIdx.x.
__global__ void __launch_bounds__(kThreads) rope_kernel(RopeParams p, int64_t heads_per_block) {
  extern __shared__ float2 table[];  // [pairs]
  const int pairs = static_cast<int>(p.rotary_dim / 2);
  const int64_t row = blockIdx.x;
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    table[i] = rotation(p.positions[row], p.inv_freq[i], p.inverse);
  }
  __syncthreads();
  const int64_t first = blockIdx.y * heads_per_block;
  const int count = static_cast<int>(min(heads_per_block, p.heads - first)) * pairs;
  Bf16* base = p.x + row * p.row_stride + first * p.head_stride + p.head_dim - p.rotary_dim;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int pair = i % pairs;
    Bf16* x = base + i / pairs * p.head_stride + 2 * pair;
    const float2 turned = rotate(widen(x[0]), widen(x[1]), table[pair]);
    x[0] = Bf16(turned.x);
    x[1] = Bf16(turned.y);
  }
}

}  // namespace

Status rope(KernelContext& ctx, const RopeParams& p) {
  const int64_t pairs = p.rotary_dim / 2;
  if (pairs == 0) return {};
  const int64_t heads = std::clamp<int64_t>(kPairsPerBlock / pairs, 1, p.heads);
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(ceil_div(p.heads, heads)));
  rope_kernel<<<grid, kThreads, static_cast<size_t>(pairs) * sizeof(float2), stream_of(ctx)>>>(
      p, heads);
  return launched("rope");
}

}  // namespace cedar::kernels::cuda
