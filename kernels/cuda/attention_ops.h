#pragma once
// The CUDA back end of the operations that dispatch_attention.cpp checks: everything row-wise. Every pointer
// in the parameters is device memory. A row's result does not depend on the other rows of the call.

#include "kernels/compress.h"
#include "kernels/dense_attention.h"
#include "kernels/embed.h"
#include "kernels/engram.h"
#include "kernels/hyper_connection.h"
#include "kernels/index_score.h"
#include "kernels/kv_write.h"
#include "kernels/logit_candidates.h"
#include "kernels/query_window.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/sparse_attention.h"
#include "kernels/topk.h"

namespace cedar::kernels::cuda {

Status rms_norm(KernelContext& ctx, const RmsNormParams& p);
Status rope(KernelContext& ctx, const RopeParams& p);
Status query_window(KernelContext& ctx, const QueryWindowParams& p);
Status kv_write(KernelContext& ctx, const KvWriteParams& p);
Status ring_write(KernelContext& ctx, const RingWriteParams& p);
Status compress(KernelContext& ctx, const CompressParams& p);
Status index_query(KernelContext& ctx, const IndexQueryParams& p);
Status index_score(KernelContext& ctx, const IndexScoreParams& p);
Status topk(KernelContext& ctx, const TopkParams& p);
Status logit_candidates(KernelContext& ctx, const LogitCandidatesParams& p);
Status candidate_blocks(KernelContext& ctx, const CandidateBlocksParams& p);
Status sparse_attention(KernelContext& ctx, const SparseAttentionParams& p);
Status hc_pre(KernelContext& ctx, const HcPreParams& p);
Status hc_post(KernelContext& ctx, const HcPostParams& p);
Status hc_collapse(KernelContext& ctx, const HcCollapseParams& p);
Status hc_mean(KernelContext& ctx, const HcMeanParams& p);
Status engram_widen(KernelContext& ctx, const EngramWidenParams& p);
Status engram_gate(KernelContext& ctx, const EngramGateParams& p);
Status embed(KernelContext& ctx, const EmbedParams& p);
Status gather_rows(KernelContext& ctx, const GatherRowsParams& p);
Status scatter_rows(KernelContext& ctx, const GatherRowsParams& p);
Status dense_attention(KernelContext& ctx, const DenseAttentionParams& p);
Status vision_rope(KernelContext& ctx, const VisionRopeParams& p);
Status add_bias(KernelContext& ctx, const BiasParams& p);
Status silu_mul(KernelContext& ctx, const SiluMulParams& p);

}  // namespace cedar::kernels::cuda
