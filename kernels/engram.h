#pragma once
// Engram rows and gate (spec/model.md 9.4).

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/kernel_context.h"

namespace cedar::kernels {

/// Widens fetched table rows: E4M3 codes [rows, columns, dim] with E8M0 scales per 32 -> bf16 (exact).
struct EngramWidenParams {
  const uint8_t* rows_packed = nullptr;  // [rows, columns, dim + dim / 32]: codes, then scales
  Bf16* out = nullptr;                   // [rows, columns * dim]
  int64_t rows = 0, columns = 0, dim = 0;
};
Status engram_widen(KernelContext& ctx, const EngramWidenParams& p);

/// Per copy j: gate = sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot)), x_j <- bf16(x_j + gate * value).
struct EngramGateParams {
  Bf16* x = nullptr;               // [rows, copies, d], in place
  const Bf16* kv = nullptr;        // [rows, (copies + 1) * d]: keys of the copies, then the value
  const Bf16* q_weight = nullptr;  // [copies, d]
  const Bf16* k_weight = nullptr;  // [copies, d]
  const uint8_t* image_mask = nullptr;  // [rows] or null; set: x unchanged
  float eps = 0;
  int64_t rows = 0, copies = 4, d = 0;
};
Status engram_gate(KernelContext& ctx, const EngramGateParams& p);

}  // namespace cedar::kernels
