#pragma once
// Vision tower only (spec/model.md 12.2): full bidirectional attention inside one image, and its small
// element-wise operations.

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/kernel_context.h"

namespace cedar::kernels {

struct DenseAttentionParams {
  const Bf16* qkv = nullptr;  // [rows, 3, heads, head_dim]; q and k already rotated
  float scale = 0;
  Bf16* o = nullptr;  // [rows, heads, head_dim]
  int64_t rows = 0, heads = 0, head_dim = 0;
};
Status dense_attention(KernelContext& ctx, const DenseAttentionParams& p);

/// Split-half rotation of q and k by 2-D angles: (x_k, x_{k + half}) with cos/sin [rows, head_dim / 2].
struct VisionRopeParams {
  Bf16* qkv = nullptr;  // [rows, 3, heads, head_dim], q and k rotated in place
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t rows = 0, heads = 0, head_dim = 0;
};
Status vision_rope(KernelContext& ctx, const VisionRopeParams& p);

enum class Activation : uint8_t { none, gelu_erf };
/// x = activation(x + bias) + residual, rounded to bf16 after each of the three. A linear with a bias rounds
/// once (spec/model.md 0): its fp32 accumulators come in `sum` and stand for x, which is then written only.
struct BiasParams {
  Bf16* x = nullptr;               // [rows, columns], in place
  const float* sum = nullptr;      // [rows, columns] or null
  const Bf16* bias = nullptr;      // [columns] or null
  const Bf16* residual = nullptr;  // [rows, columns] added last, or null
  Activation activation = Activation::none;
  int64_t rows = 0, columns = 0;
};
Status add_bias(KernelContext& ctx, const BiasParams& p);

/// y = bf16(bf16(silu(x[:, :columns])) * x[:, columns:])
struct SiluMulParams {
  const Bf16* x = nullptr;  // [rows, 2 * columns]
  Bf16* y = nullptr;        // [rows, columns]
  int64_t rows = 0, columns = 0;
};
Status silu_mul(KernelContext& ctx, const SiluMulParams& p);

}  // namespace cedar::kernels
