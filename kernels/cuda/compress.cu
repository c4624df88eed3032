#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct Member {
  const float* kv;
  const float* gate;
};

/// Row of member m of group g: of the chunk, or kept from an earlier one.
__device__ Member member_row(const CompressParams& p, int64_t g, int64_t m) {
  const int64_t at = g * p.ratio + m;
  const int64_t row = p.members[at];
  if (row >= 0) return {p.kv + row * p.columns, p.gate + row * p.columns};
  const int64_t slot = -1 - row;
  const int64_t offset = (slot * (p.ratio - 1) + p.pending_rows[at]) * p.columns;
  return {p.pending_kv + offset, p.pending_gate + offset};
}

/// One block a group.
__global__ void __launch_bounds__(kThreads) compress_kernel(CompressParams p) {
  extern __shared__ Bf16 pooled[];  // [columns]
  __shared__ float partial[kThreads / kWarp];
  const int64_t g = blockIdx.x;
  float squares = 0;
  for (int64_t c = threadIdx.x; c < p.columns; c += kThreads) {
    float largest = 0;
    for (int64_t m = 0; m < p.ratio; ++m) {
      const float gate = member_row(p, g, m).gate[c];
      largest = m == 0 ? gate : fmaxf(largest, gate);
    }
    float total = 0;
    for (int64_t m = 0; m < p.ratio; ++m) {
      const float w = exp_exact(__fsub_rn(member_row(p, g, m).gate[c], largest));
      total = m == 0 ? w : __fadd_rn(total, w);
    }
    float sum = 0;
    for (int64_t m = 0; m < p.ratio; ++m) {
      const Member member = member_row(p, g, m);
      const float w = exp_exact(__fsub_rn(member.gate[c], largest));
      const float part = __fmul_rn(__fdiv_rn(w, total), member.kv[c]);
      sum = m == 0 ? part : __fadd_rn(sum, part);
    }
    pooled[c] = Bf16(sum);
    squares = fmaf(widen(pooled[c]), widen(pooled[c]), squares);
  }
  const float factor = norm_factor(block_sum<kThreads>(squares, partial), p.columns, p.eps);
  Bf16* latent = p.latent + g * p.columns;
  for (int64_t c = threadIdx.x; c < p.columns; c += kThreads) {
    latent[c] = Bf16(__fmul_rn(widen(p.norm_weight[c]), __fmul_rn(widen(pooled[c]), factor)));
  }
}

}  // namespace

Status compress(KernelContext& ctx, const CompressParams& p) {
  const size_t shared = static_cast<size_t>(p.columns) * sizeof(Bf16);
  CEDAR_CHECK_OK(allow_shared("compress", compress_kernel, shared));
  compress_kernel<<<static_cast<unsigned>(p.groups), kThreads, shared, stream_of(ctx)>>>(p);
  return launched("compress");
}

}  // namespace cedar::kernels::cuda
