#pragma once
// Token embedding into the mHC copies, and small row movers.

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/kernel_context.h"

namespace cedar::kernels {

/// x[t, j] = table[ids[t]] for every copy j; or override_rows[override[t]] where override[t] >= 0 (image rows).
struct EmbedParams {
  const Bf16* table = nullptr;              // [vocab, d]
  const int32_t* ids = nullptr;             // [rows]
  const int32_t* override_index = nullptr;  // [rows] or null
  const Bf16* override_rows = nullptr;      // [n, d]
  Bf16* x = nullptr;                        // [rows, copies, d]
  int64_t rows = 0, copies = 4, d = 0;
};
Status embed(KernelContext& ctx, const EmbedParams& p);

/// dst row i = src row index[i] (bytes); index < 0 leaves dst row i unchanged.
struct GatherRowsParams {
  const void* src = nullptr;
  const int32_t* index = nullptr;  // [rows]
  void* dst = nullptr;
  int64_t rows = 0, row_bytes = 0;
};
Status gather_rows(KernelContext& ctx, const GatherRowsParams& p);
/// dst row index[i] = src row i (bytes); index < 0 drops row i.
Status scatter_rows(KernelContext& ctx, const GatherRowsParams& p);

}  // namespace cedar::kernels
