#pragma once
// Indexer scores of the release's shape (32 heads of 128) on the tensor cores.

#include "kernels/index_score.h"

namespace cedar::kernels::cuda {

/// Whether index_score_tiles() takes these parameters.
bool fits_tiles(const IndexScoreParams& p);
Status index_score_tiles(KernelContext& ctx, const IndexScoreParams& p);

}  // namespace cedar::kernels::cuda
