#pragma once
// hc_pre with four copies of at most 5120 columns, in clusters and on the tensor cores.

#include "kernels/hyper_connection.h"

namespace cedar::kernels::cuda {

/// Whether hc_pre_tiles() takes these parameters.
bool fits_tiles(const HcPreParams& p);
Status hc_pre_tiles(KernelContext& ctx, const HcPreParams& p);

}  // namespace cedar::kernels::cuda
