#pragma once
// Products with coded weights for GPUs without wgmma and the copy engine (sm_80 on): the packed layout is also that of the
// register operand of mma.sync, so a warp decodes its own 16 outputs and reads rows of x from memory as they are. No
// ring, no split of the inputs; a row's sums are in the order of the inputs.

#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/moe_experts.h"

namespace cedar::kernels::cuda {

/// Slots a tile of the plan that plain_experts() wants.
constexpr int kPlainColumns = 32;
/// Both products of the experts; `x` [slots, d]. REQUIRES: plan.columns == kPlainColumns.
Status plain_experts(KernelContext& ctx, const UpArgs& up, const DownArgs& down, const Bf16* x);

}  // namespace cedar::kernels::cuda
