// The vision tower's attention and element-wise operations.

#include <algorithm>
#include <cmath>

#include "core/units.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/row_context.h"

namespace cedar::kernels::cpu {
namespace {

// Queries of one head that share a packed block of keys: their sums (256 B each at 64 channels) and
// the block fit the second-level cache, and packing is a few percent of the work.
constexpr int64_t kQueryTile = 128;

float gelu_erf(float x) {
  const double wide = static_cast<double>(x);
  return static_cast<float>(0.5 * wide * (1.0 + std::erf(wide * M_SQRT1_2)));
}

}  // namespace

Status dense_attention(KernelContext& ctx, const DenseAttentionParams& p) {
  const RowKernels& k = row_kernels(ctx);
  const int64_t tiles = ceil_div(p.rows, kQueryTile);
  const int64_t width = p.heads * p.head_dim;
  ArenaScope scope(*ctx.arena);
  WorkerScratch scratch(ctx, attention_scratch_bytes(kQueryTile, p.head_dim));
  ctx.pool->parallel_for(tiles * p.heads, 1, [&](int64_t begin, int64_t end) {
    const WorkerScratch::Lease lease(scratch);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t head = unit / tiles;
      const int64_t first = unit % tiles * kQueryTile;
      AttendDense a;
      const uint16_t* columns = raw(p.qkv + head * p.head_dim);
      a.stride = 3 * width;
      a.q = columns + first * a.stride;
      a.k = columns + width;
      a.v = columns + 2 * width;
      a.queries = std::min(kQueryTile, p.rows - first);
      a.keys = p.rows;
      a.scale = p.scale;
      a.head_dim = p.head_dim;
      a.o = raw(p.o + first * width + head * p.head_dim);
      a.o_stride = width;
      a.scratch = lease.data();
      k.attend_dense(a);
    }
  });
  return {};
}

Status vision_rope(KernelContext& ctx, const VisionRopeParams& p) {
  const RowKernels& k = row_kernels(ctx);
  const int64_t half = p.head_dim / 2;
  ctx.pool->parallel_for(p.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      // q and k of all heads are neighbours in a row.
      for (int64_t h = 0; h < 2 * p.heads; ++h) {
        k.rotate_halves(raw(p.qkv + (i * 3 * p.heads + h) * p.head_dim), half, p.cos + i * half,
                        p.sin + i * half);
      }
    }
  });
  return {};
}

Status add_bias(KernelContext& ctx, const BiasParams& p) {
  ctx.pool->parallel_for(p.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * p.columns; i < end * p.columns; ++i) {
      float value = p.sum != nullptr ? p.sum[i] : static_cast<float>(p.x[i]);
      if (p.bias != nullptr) value += static_cast<float>(p.bias[i % p.columns]);
      Bf16 y(value);
      if (p.activation == Activation::gelu_erf) y = Bf16(gelu_erf(static_cast<float>(y)));
      if (p.residual != nullptr)
        y = Bf16(static_cast<float>(y) + static_cast<float>(p.residual[i]));
      p.x[i] = y;
    }
  });
  return {};
}

Status silu_mul(KernelContext& ctx, const SiluMulParams& p) {
  const RowKernels& k = row_kernels(ctx);
  ctx.pool->parallel_for(p.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Bf16* x = p.x + i * 2 * p.columns;
      k.silu_mul(raw(x), raw(x + p.columns), raw(p.y + i * p.columns), p.columns);
    }
  });
  return {};
}

}  // namespace cedar::kernels::cpu
