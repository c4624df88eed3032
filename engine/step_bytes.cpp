#include "engine/step_bytes.h"

#include <algorithm>

namespace cedar::engine {
namespace {

int64_t expert_bytes(const kernels::ExpertWeights& expert) {
  return expert.w1.bytes() + expert.w3.bytes() + expert.w2.bytes();
}

int64_t expert_weights(const kernels::ExpertWeights& expert) {
  return expert.w1.out * expert.w1.in * 2 + expert.w2.out * expert.w2.in;
}

template <class Fn>
void for_each_dense(const LayerWeights& w, const Fn& fn) {
  for (const kernels::PackedWeight* weight : {&w.wq_a, &w.wq_b, &w.wkv, &w.wo_b, &w.gate}) {
    fn(*weight);
  }
  for (const kernels::PackedWeight& group : w.wo_a) fn(group);
  if (w.compressor) {
    fn(w.compressor->wkv);
    if (w.compressor->wgate) fn(*w.compressor->wgate);
  }
  if (w.index_key) fn(w.index_key->wk);
  if (w.index_query) {
    fn(w.index_query->wq_b);
    fn(w.index_query->weights_proj);
  }
  if (w.engram) fn(w.engram->wkv);
}

int64_t layer_weight_bytes(const LoadedModel& model, const LayerWeights& w, int64_t sequences) {
  int64_t bytes = w.hc_attn.fn.buffer.bytes() + w.hc_ffn.fn.buffer.bytes();
  for_each_dense(w, [&](const kernels::PackedWeight& weight) { bytes += weight.bytes(); });
  bytes += expert_bytes(w.shared);
  const auto chosen = std::min<int64_t>(static_cast<int64_t>(w.experts.size()),
                                        model.config.num_experts_per_tok * sequences);
  return bytes + chosen * expert_bytes(w.experts.front());
}

}  // namespace

StepBytes decode_step_bytes(const LoadedModel& model, int64_t sequences, int64_t context) {
  StepBytes out;
  const int64_t window = std::min(context, model.config.sliding_window);
  for (const model::LayerPlan& plan : model.plan.layers) {
    out.weights +=
        layer_weight_bytes(model, *model.layers[static_cast<size_t>(plan.id)], sequences);
    out.kv += window * model.layout.window_row_bytes;
    if (plan.ratio == 0) continue;
    const int64_t visible = context / plan.ratio;
    out.kv += std::min(visible, model.config.index_topk) * model.layout.main_row_bytes;
    if (!plan.scores()) continue;
    const int64_t pool = model.config.candidate_topk_blocks * model.config.candidate_block_size;
    out.kv +=
        (plan.uses_candidates ? std::min(visible, pool) : visible) * model.layout.index_row_bytes;
  }
  out.kv *= sequences;
  out.weights += model.head->bytes();
  return out;
}

double prefill_row_flops(const LoadedModel& model, int64_t context) {
  double weights = 0;
  double attention = 0;
  for (LayerId layer = 0; layer < model.plan.boundary; ++layer) {
    const LayerWeights& w = *model.layers[static_cast<size_t>(layer)];
    for_each_dense(w, [&](const kernels::PackedWeight& weight) {
      weights += static_cast<double>(weight.out * weight.in);
    });
    const int64_t copies = model.config.hc_mult;
    weights +=
        static_cast<double>(2 * (2 * copies + copies * copies) * copies * model.config.hidden_size);
    weights += static_cast<double>(expert_weights(w.shared));
    weights +=
        static_cast<double>(model.config.num_experts_per_tok * expert_weights(w.experts.front()));
    const model::LayerPlan& plan = model.plan.layers[static_cast<size_t>(layer)];
    int64_t rows = std::min(context, model.config.sliding_window);
    if (plan.ratio > 0) rows += std::min(context / plan.ratio, model.config.index_topk);
    attention +=
        static_cast<double>(rows * model.config.num_attention_heads * model.config.head_dim * 2);
    if (plan.scores()) {
      attention += static_cast<double>(context / plan.ratio * model.config.index_n_heads *
                                       model.config.index_head_dim);
    }
  }
  return 2 * (weights + attention);
}

}  // namespace cedar::engine
