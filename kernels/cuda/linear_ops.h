#pragma once
// The CUDA back end of quantize.h, weights.h, linear.h and moe.h. Parameters are checked by
// dispatch_linear.cpp.

#include <span>

#include "kernels/linear.h"
#include "kernels/moe.h"
#include "kernels/quantize.h"
#include "kernels/weights.h"

namespace cedar::kernels::cuda {

Status quantize_q8(KernelContext& ctx, const QuantizeQ8Params& p);
Result<PackedWeight> pack_weight(KernelContext& ctx, std::span<const WeightView> stacked);
Status linear(KernelContext& ctx, const LinearParams& p);
/// The router's products alone, fp32 [rows, expert_count], in the context's arena.
Result<float*> gate_products(KernelContext& ctx, const MoeGateParams& p);
Status moe_gate(KernelContext& ctx, const MoeGateParams& p);
Status moe_experts(KernelContext& ctx, const MoeExpertsParams& p);
Result<ExpertTable> expert_table(KernelContext& ctx, std::span<const ExpertWeights> routed,
                                 const ExpertWeights* shared);

}  // namespace cedar::kernels::cuda
