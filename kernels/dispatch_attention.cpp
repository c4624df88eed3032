// Checks parameters once for every back end, then picks the back end, for every operation that is
// not in dispatch_linear.cpp.

#include <string>
#include <type_traits>

#include "core/device_memory.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/query_window.h"
#if defined(CEDAR_HAVE_CUDA)
#include "kernels/cuda/attention_ops.h"
#define CEDAR_ON_CUDA(operation) cuda::operation
#else
#define CEDAR_ON_CUDA(operation) nullptr
#endif

namespace cedar::kernels {
namespace {

/// The first rule of an operation's parameters that does not hold.
class Checks {
 public:
  explicit Checks(const char* operation) : operation_(operation) {}

  Checks& at_least(const char* field, int64_t value, int64_t least) {
    if (value < least)
      fail(field, "at least " + std::to_string(least) + ", got " + std::to_string(value));
    return *this;
  }
  Checks& at_most(const char* field, int64_t value, int64_t most) {
    if (value > most)
      fail(field, "at most " + std::to_string(most) + ", got " + std::to_string(value));
    return *this;
  }
  Checks& multiple_of(const char* field, int64_t value, int64_t factor) {
    if (value <= 0 || value % factor != 0) {
      fail(field,
           "a positive multiple of " + std::to_string(factor) + ", got " + std::to_string(value));
    }
    return *this;
  }
  Checks& present(const char* field, const void* pointer) {
    if (pointer == nullptr) fail(field, "set, got null");
    return *this;
  }
  /// A rotary part of `dim` columns at the end of `columns`.
  Checks& rotary(int64_t dim, int64_t columns) {
    at_least("rotary_dim", dim, 0).at_most("rotary_dim", dim, columns);
    if (dim % 2 != 0) fail("rotary_dim", "even, got " + std::to_string(dim));
    return *this;
  }
  Status status() const {
    if (failed_) return make_error(Errc::invalid_argument, context_);
    return {};
  }

 private:
  void fail(const char* field, const std::string& rule) {
    if (!failed_) context_ = std::string(operation_) + ": " + field + " must be " + rule;
    failed_ = true;
  }

  const char* operation_;
  std::string context_;
  bool failed_ = false;
};

int64_t format_group(RowFormat format) { return format == RowFormat::q4n ? kQ4nGroup : kQ8Group; }

Status check(const RmsNormParams& p) {
  return Checks("rms_norm")
      .at_least("columns", p.columns, 1)
      .at_least("x_stride", p.x_stride, p.columns)
      .at_least("y_stride", p.y_stride, p.columns)
      .present("x", p.x)
      .present("weight", p.weight)
      .present("y", p.y)
      .status();
}

Status check(const RopeParams& p) {
  return Checks("rope")
      .at_least("heads", p.heads, 1)
      .rotary(p.rotary_dim, p.head_dim)
      .present("x", p.x)
      .present("positions", p.positions)
      .present("inv_freq", p.inv_freq)
      .status();
}

Status check(const KvWriteParams& p) {
  Checks checks("kv_write");
  checks.multiple_of("columns", p.columns, format_group(p.format))
      .rotary(p.rotary_dim, p.columns)
      .at_least("x_stride", p.x_stride, p.columns)
      .present("x", p.x);
  if (p.rotary_dim > 0) checks.present("positions", p.positions).present("inv_freq", p.inv_freq);
  if (p.dense == nullptr) {
    checks.present("dense or paged.base", p.paged.base)
        .present("paged.page_table", p.paged.page_table)
        .at_least("paged.row_bytes", p.paged.row_bytes, packed_row_bytes(p.format, p.columns))
        .at_least("paged.rows_per_page", p.paged.rows_per_page, 1)
        .present("sequences", p.sequences)
        .present("target_rows", p.target_rows);
  }
  return checks.status();
}

Status check(const RingWriteParams& p) {
  return Checks("ring_write")
      .at_least("rings.window", p.rings.window, 1)
      .at_least("rings.row_bytes", p.rings.row_bytes, 1)
      .present("rings.base", p.rings.base)
      .present("chunk_rows", p.chunk_rows)
      .present("slots", p.slots)
      .present("positions", p.positions)
      .status();
}

Status check(const CompressParams& p) {
  Checks checks("compress");
  checks.at_least("ratio", p.ratio, 1)
      .at_least("columns", p.columns, 1)
      .present("kv", p.kv)
      .present("gate", p.gate)
      .present("members", p.members)
      .present("norm_weight", p.norm_weight)
      .present("latent", p.latent);
  return checks.status();
}

Status check(const IndexQueryParams& p) {
  return Checks("index_query")
      .at_least("heads", p.heads, 1)
      .multiple_of("columns", p.columns, kQ4xGroup)
      .rotary(p.rotary_dim, p.columns)
      .present("q", p.q)
      .present("positions", p.positions)
      .present("inv_freq", p.inv_freq)
      .present("packed", p.packed)
      .status();
}

/// `on_cpu`: the visible counts can be read here.
Status check(const IndexScoreParams& p, bool on_cpu) {
  Checks checks("index_score");
  checks.at_least("heads", p.heads, 1)
      .multiple_of("columns", p.columns, kQ4xGroup)
      .present("q", p.q)
      .present("head_weights", p.head_weights)
      .present("sequences", p.sequences)
      .present("visible", p.visible)
      .present("scores", p.scores);
  int64_t visible = 0;
  if (p.visible != nullptr && on_cpu) {
    for (int64_t i = 0; i < p.rows; ++i) {
      checks.at_least("visible", p.visible[i], 0);
      visible = visible < p.visible[i] ? p.visible[i] : visible;
    }
  }
  checks.at_least("score_stride", p.score_stride, visible).at_most("visible", visible, INT32_MAX);
  if (p.mask != nullptr) checks.at_least("mask_stride", p.mask_stride, (visible + 31) / 32);
  if (visible > 0) {
    checks.present("keys.base", p.keys.base)
        .present("keys.page_table", p.keys.page_table)
        .at_least("keys.row_bytes", p.keys.row_bytes, packed_row_bytes(RowFormat::q4x, p.columns))
        .at_least("keys.rows_per_page", p.keys.rows_per_page, 1);
  }
  return checks.status();
}

Status check(const TopkParams& p) {
  Checks checks("topk");
  checks.at_least("columns", p.columns, 0)
      .at_least("score_stride", p.score_stride, p.columns)
      .at_most("columns", p.columns, INT32_MAX)
      .at_least("k", p.k, 0);
  if (p.columns > 0) checks.present("scores", p.scores);
  if (p.k > 0) checks.present("indices", p.indices);
  if (p.mask != nullptr) checks.at_least("mask_stride", p.mask_stride, (p.columns + 31) / 32);
  return checks.status();
}

Status check(const LogitCandidatesParams& p) {
  return Checks("logit_candidates")
      .at_least("columns", p.columns, 1)
      .at_most("columns", p.columns, INT32_MAX)
      .at_least("k", p.k, 1)
      .at_most("k", p.k, p.columns)
      .at_least("raw_k", p.raw_k, 0)
      .at_most("raw_k", p.raw_k, p.columns)
      .present("logits", p.logits)
      .present("draws", p.draws)
      .present("candidates", p.candidates)
      .present("raw_best", p.raw_k == 0 ? p.logits : static_cast<const void*>(p.raw_best))
      .present("stats", p.stats)
      .status();
}

Status check(const CandidateBlocksParams& p) {
  Checks checks("candidate_blocks");
  checks.at_least("columns", p.columns, 0)
      .at_least("score_stride", p.score_stride, p.columns)
      .at_most("columns", p.columns, INT32_MAX)
      .at_least("block", p.block, 1)
      .at_least("keep", p.keep, 0)
      .at_least("mask_stride", p.mask_stride, (p.columns + 31) / 32)
      .present("visible", p.visible)
      .present("mask", p.mask);
  if (p.columns > 0) checks.present("scores", p.scores);
  return checks.status();
}

Status check(const SparseAttentionParams& p) {
  Checks checks("sparse_attention");
  checks.at_least("heads", p.heads, 1)
      .multiple_of("head_dim", p.head_dim, kQ8Group)
      .present("q", p.q)
      .present("sink", p.sink)
      .present("window", p.window)
      .present("o", p.o);
  if (p.inv_freq != nullptr) {
    checks.rotary(p.rotary_dim, p.head_dim).present("positions", p.positions);
  }
  if (p.topk != nullptr) {
    checks.at_least("k", p.k, 0).present("sequences", p.sequences);
    if (p.k > 0) {
      checks.present("global.base", p.global.base)
          .present("global.page_table", p.global.page_table)
          .at_least("global.row_bytes", p.global.row_bytes,
                    packed_row_bytes(RowFormat::q4n, p.head_dim))
          .at_least("global.rows_per_page", p.global.rows_per_page, 1);
    }
  }
  return checks.status();
}

Checks hyper_connection(const char* operation, int64_t copies, int64_t d, const void* x) {
  Checks checks(operation);
  checks.at_least("copies", copies, 1)
      .at_most("copies", copies, kMaxHcCopies)
      .at_least("d", d, 1)
      .present("x", x);
  return checks;
}

Status check(const HcPreParams& p) {
  return hyper_connection("hc_pre", p.copies, p.d, p.x)
      .present("pre_in", p.pre_in)
      .present("weights.fn", p.weights.fn)
      .present("weights.base", p.weights.base)
      .present("weights.scale", p.weights.scale)
      .present("norm_weight", p.norm_weight)
      .at_least("sinkhorn_iterations", p.sinkhorn_iterations, 1)
      .present("u", p.u)
      .present("pre", p.pre)
      .present("post", p.post)
      .present("mix", p.mix)
      .status();
}

Status check(const HcPostParams& p) {
  return hyper_connection("hc_post", p.copies, p.d, p.x)
      .present("y or slots", p.slots != nullptr ? p.slots->out : p.y)
      .present("post", p.post)
      .present("mix", p.mix)
      .present("x_out", p.x_out)
      .status();
}

Status check(const HcCollapseParams& p) {
  return hyper_connection("hc_collapse", p.copies, p.d, p.x)
      .present("pre", p.pre)
      .present("u", p.u)
      .status();
}

Status check(const HcMeanParams& p) {
  return hyper_connection("hc_mean", p.copies, p.d, p.x)
      .present("y", p.y)
      .at_least("y_stride", p.y_stride, p.d)
      .status();
}

Status check(const EngramWidenParams& p) {
  return Checks("engram_widen")
      .multiple_of("dim", p.dim, kQ8Group)
      .at_least("columns", p.columns, 1)
      .present("rows_packed", p.rows_packed)
      .present("out", p.out)
      .status();
}

Status check(const EngramGateParams& p) {
  return Checks("engram_gate")
      .at_least("copies", p.copies, 1)
      .at_least("d", p.d, 1)
      .present("x", p.x)
      .present("kv", p.kv)
      .present("q_weight", p.q_weight)
      .present("k_weight", p.k_weight)
      .status();
}

Status check(const EmbedParams& p) {
  Checks checks("embed");
  checks.at_least("copies", p.copies, 1)
      .at_least("d", p.d, 1)
      .present("table", p.table)
      .present("ids", p.ids)
      .present("x", p.x);
  if (p.override_index != nullptr) checks.present("override_rows", p.override_rows);
  return checks.status();
}

Status check(const char* operation, const GatherRowsParams& p) {
  return Checks(operation)
      .at_least("row_bytes", p.row_bytes, 1)
      .present("src", p.src)
      .present("index", p.index)
      .present("dst", p.dst)
      .status();
}

Status check(const DenseAttentionParams& p) {
  return Checks("dense_attention")
      .at_least("heads", p.heads, 1)
      .multiple_of("head_dim", p.head_dim, 32)
      .present("qkv", p.qkv)
      .present("o", p.o)
      .status();
}

Status check(const VisionRopeParams& p) {
  return Checks("vision_rope")
      .at_least("heads", p.heads, 1)
      .multiple_of("head_dim", p.head_dim, 2)
      .present("qkv", p.qkv)
      .present("cos", p.cos)
      .present("sin", p.sin)
      .status();
}

Status check(const BiasParams& p) {
  return Checks("add_bias").at_least("columns", p.columns, 1).present("x", p.x).status();
}

Status check(const SiluMulParams& p) {
  return Checks("silu_mul")
      .at_least("columns", p.columns, 1)
      .present("x", p.x)
      .present("y", p.y)
      .status();
}

Error no_back_end(const char* operation, Device device) {
  return make_error(Errc::unsupported, std::string(operation) +
                                           ": this build has no back end for " + to_string(device));
}

/// Nothing to do for no rows, whatever the other fields hold.
template <class Params>
Status run(const char* operation, KernelContext& ctx, const Params& p, int64_t rows,
           const Status& checked, Status (*on_cpu)(KernelContext&, const Params&),
           Status (*on_cuda)(KernelContext&, const std::type_identity_t<Params>&)) {
  if (rows == 0) return {};
  CEDAR_CHECK_OK(Checks(operation).at_least("rows", rows, 0).status());
  if (!checked) return checked.error();
  if (ctx.device.kind == DeviceKind::cpu) return on_cpu(ctx, p);
  if (on_cuda == nullptr) return no_back_end(operation, ctx.device);
  CEDAR_CHECK_OK(check_device(ctx.device));
  return on_cuda(ctx, p);
}

}  // namespace

Status rms_norm(KernelContext& ctx, const RmsNormParams& p) {
  return run("rms_norm", ctx, p, p.rows, check(p), cpu::rms_norm, CEDAR_ON_CUDA(rms_norm));
}
Status rope(KernelContext& ctx, const RopeParams& p) {
  return run("rope", ctx, p, p.rows, check(p), cpu::rope, CEDAR_ON_CUDA(rope));
}
Status kv_write(KernelContext& ctx, const KvWriteParams& p) {
  return run("kv_write", ctx, p, p.rows, check(p), cpu::kv_write, CEDAR_ON_CUDA(kv_write));
}
Status query_window_on_cpu(KernelContext& ctx, const QueryWindowParams& p) {
  CEDAR_CHECK_OK(rms_norm(ctx, p.norm));
  QuantizeQ8Params q;
  q.x = p.norm.y;
  q.x_stride = p.norm.y_stride;
  q.out = p.quantised;
  q.rows = p.norm.rows;
  q.columns = p.norm.columns;
  CEDAR_CHECK_OK(quantize_q8(ctx, q));
  return kv_write(ctx, p.window);
}
Status query_window(KernelContext& ctx, const QueryWindowParams& p) {
  CEDAR_CHECK_OK(check(p.norm));
  CEDAR_CHECK_OK(Checks("query_window")
                     .multiple_of("norm.columns", p.norm.columns, kQ8Group)
                     .present("window.dense", p.window.dense)
                     .status());
  return run("query_window", ctx, p, p.norm.rows, check(p.window), query_window_on_cpu,
             CEDAR_ON_CUDA(query_window));
}
Status ring_write(KernelContext& ctx, const RingWriteParams& p) {
  return run("ring_write", ctx, p, p.rows, check(p), cpu::ring_write, CEDAR_ON_CUDA(ring_write));
}
Status compress(KernelContext& ctx, const CompressParams& p) {
  return run("compress", ctx, p, p.groups, check(p), cpu::compress, CEDAR_ON_CUDA(compress));
}
Status index_query(KernelContext& ctx, const IndexQueryParams& p) {
  return run("index_query", ctx, p, p.rows, check(p), cpu::index_query, CEDAR_ON_CUDA(index_query));
}
Status index_score(KernelContext& ctx, const IndexScoreParams& p) {
  return run("index_score", ctx, p, p.rows, check(p, ctx.device.kind == DeviceKind::cpu),
             cpu::index_score, CEDAR_ON_CUDA(index_score));
}
Status topk(KernelContext& ctx, const TopkParams& p) {
  return run("topk", ctx, p, p.rows, check(p), cpu::topk, CEDAR_ON_CUDA(topk));
}
Status logit_candidates(KernelContext& ctx, const LogitCandidatesParams& p) {
  return run("logit_candidates", ctx, p, p.rows, check(p), cpu::logit_candidates,
             CEDAR_ON_CUDA(logit_candidates));
}
Status candidate_blocks(KernelContext& ctx, const CandidateBlocksParams& p) {
  return run("candidate_blocks", ctx, p, p.rows, check(p), cpu::candidate_blocks,
             CEDAR_ON_CUDA(candidate_blocks));
}
Status sparse_attention(KernelContext& ctx, const SparseAttentionParams& p) {
  if (p.rotate_q && (ctx.device.kind == DeviceKind::cpu || p.inv_freq == nullptr)) {
    return make_error(Errc::unsupported,
                      "sparse_attention: rotate_q on the CPU or without inv_freq");
  }
  return run("sparse_attention", ctx, p, p.rows, check(p), cpu::sparse_attention,
             CEDAR_ON_CUDA(sparse_attention));
}
Status hc_post(KernelContext& ctx, const HcPostParams& p) {
  if (p.ring != nullptr) CEDAR_CHECK_OK(check(*p.ring));
  if (ctx.device.kind == DeviceKind::cpu) {
    if (p.slots != nullptr) return make_error(Errc::unsupported, "hc_post: slots on the CPU");
    if (p.ring != nullptr) CEDAR_CHECK_OK(ring_write(ctx, *p.ring));
  }
  return run("hc_post", ctx, p, p.rows, check(p), cpu::hc_post, CEDAR_ON_CUDA(hc_post));
}
Status hc_pre(KernelContext& ctx, const HcPreParams& p) {
  if (p.after != nullptr) {
    CEDAR_CHECK_OK(check(*p.after));
    CEDAR_CHECK_OK(Checks("hc_pre").at_least("after->x_out", p.after->x_out == p.x, 1).status());
    if (ctx.device.kind == DeviceKind::cpu) CEDAR_CHECK_OK(hc_post(ctx, *p.after));
  }
  return run("hc_pre", ctx, p, p.rows, check(p), cpu::hc_pre, CEDAR_ON_CUDA(hc_pre));
}
Status hc_collapse(KernelContext& ctx, const HcCollapseParams& p) {
  return run("hc_collapse", ctx, p, p.rows, check(p), cpu::hc_collapse, CEDAR_ON_CUDA(hc_collapse));
}
Status hc_mean(KernelContext& ctx, const HcMeanParams& p) {
  return run("hc_mean", ctx, p, p.rows, check(p), cpu::hc_mean, CEDAR_ON_CUDA(hc_mean));
}
Status engram_widen(KernelContext& ctx, const EngramWidenParams& p) {
  return run("engram_widen", ctx, p, p.rows, check(p), cpu::engram_widen,
             CEDAR_ON_CUDA(engram_widen));
}
Status engram_gate(KernelContext& ctx, const EngramGateParams& p) {
  return run("engram_gate", ctx, p, p.rows, check(p), cpu::engram_gate, CEDAR_ON_CUDA(engram_gate));
}
Status embed(KernelContext& ctx, const EmbedParams& p) {
  return run("embed", ctx, p, p.rows, check(p), cpu::embed, CEDAR_ON_CUDA(embed));
}
Status gather_rows(KernelContext& ctx, const GatherRowsParams& p) {
  return run("gather_rows", ctx, p, p.rows, check("gather_rows", p), cpu::gather_rows,
             CEDAR_ON_CUDA(gather_rows));
}
Status scatter_rows(KernelContext& ctx, const GatherRowsParams& p) {
  return run("scatter_rows", ctx, p, p.rows, check("scatter_rows", p), cpu::scatter_rows,
             CEDAR_ON_CUDA(scatter_rows));
}
Status dense_attention(KernelContext& ctx, const DenseAttentionParams& p) {
  return run("dense_attention", ctx, p, p.rows, check(p), cpu::dense_attention,
             CEDAR_ON_CUDA(dense_attention));
}
Status vision_rope(KernelContext& ctx, const VisionRopeParams& p) {
  return run("vision_rope", ctx, p, p.rows, check(p), cpu::vision_rope, CEDAR_ON_CUDA(vision_rope));
}
Status add_bias(KernelContext& ctx, const BiasParams& p) {
  return run("add_bias", ctx, p, p.rows, check(p), cpu::add_bias, CEDAR_ON_CUDA(add_bias));
}
Status silu_mul(KernelContext& ctx, const SiluMulParams& p) {
  return run("silu_mul", ctx, p, p.rows, check(p), cpu::silu_mul, CEDAR_ON_CUDA(silu_mul));
}

}  // namespace cedar::kernels
