#pragma once
// Sparse attention of the release's shape (64 heads of 512) on the tensor cores.

#include "kernels/sparse_attention.h"

namespace cedar::kernels::cuda {

/// Whether sparse_attention_tiles() takes these parameters.
bool fits_tiles(const SparseAttentionParams& p);
Status sparse_attention_tiles(KernelContext& ctx, const SparseAttentionParams& p);

}  // namespace cedar::kernels::cuda
