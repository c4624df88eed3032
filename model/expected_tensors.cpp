#include "model/expected_tensors.h"

#include <utility>

#include "core/units.h"
#include "model/checkpoint_slots.h"

namespace cedar::model {
namespace {

constexpr int64_t kScaleGroup = 32;

/// Who needs the tensors that are being listed.
struct Scope {
  TensorGroup group = TensorGroup::embed;
  bool encoder = false;
  bool decoder = false;
  bool routed_expert = false;
  LayerId layer = -1;
};

class SlotList {
 public:
  void set_scope(Scope scope) { scope_ = scope; }

  void add(std::string name, DType dtype, std::vector<int64_t> shape, TensorView& target) {
    CheckpointSlot& slot = slots_.emplace_back();
    slot.expected = {std::move(name), dtype,          std::move(shape),     scope_.group,
                     scope_.encoder,  scope_.decoder, scope_.routed_expert, scope_.layer};
    slot.target = &target;
  }
  void bf16(std::string name, std::vector<int64_t> shape, TensorView& target) {
    add(std::move(name), DType::bf16, std::move(shape), target);
  }
  void f32(std::string name, std::vector<int64_t> shape, TensorView& target) {
    add(std::move(name), DType::f32, std::move(shape), target);
  }
  /// `name` without ".weight".
  void fp8(const std::string& name, int64_t out, int64_t in, LinearTensors& target) {
    add(name + ".weight", DType::e4m3, {out, in}, target.weight);
    add(name + ".scale", DType::e8m0, {ceil_div(out, kScaleGroup), ceil_div(in, kScaleGroup)},
        target.scale);
  }
  void fp4(const std::string& name, int64_t out, int64_t in, LinearTensors& target) {
    add(name + ".weight", DType::i8, {out, in / 2}, target.weight);
    add(name + ".scale", DType::e8m0, {out, in / kScaleGroup}, target.scale);
  }

  std::vector<CheckpointSlot> take() { return std::move(slots_); }

 private:
  Scope scope_;
  std::vector<CheckpointSlot> slots_;
};

void add_attention(SlotList& list, const ModelConfig& c, const std::string& attn,
                   LayerTensors& layer) {
  list.fp8(attn + "wq_a", c.q_lora_rank, c.hidden_size, layer.wq_a);
  list.bf16(attn + "q_norm.weight", {c.q_lora_rank}, layer.q_norm);
  list.fp8(attn + "wq_b", c.num_attention_heads * c.head_dim, c.q_lora_rank, layer.wq_b);
  list.fp8(attn + "wkv", c.head_dim, c.hidden_size, layer.wkv);
  list.bf16(attn + "kv_norm.weight", {c.head_dim}, layer.kv_norm);
  list.f32(attn + "attn_sink", {c.num_attention_heads}, layer.attn_sink);
  const int64_t group_inputs = c.num_attention_heads / c.o_groups * c.head_dim;
  list.fp8(attn + "wo_a", c.o_groups * c.o_lora_rank, group_inputs, layer.wo_a);
  list.fp8(attn + "wo_b", c.hidden_size, c.o_groups * c.o_lora_rank, layer.wo_b);
}

void add_hyper_connection(SlotList& list, const ModelConfig& c, const std::string& name,
                          HcTensors& hc) {
  const int64_t coefficients = 2 * c.hc_mult + c.hc_mult * c.hc_mult;
  list.f32(name + "_fn", {coefficients, c.hc_mult * c.hidden_size}, hc.fn);
  list.f32(name + "_base", {coefficients}, hc.base);
  list.f32(name + "_scale", {3}, hc.scale);
}

void add_experts(SlotList& list, const ModelConfig& c, const std::string& ffn, int64_t experts,
                 Scope scope, LayerTensors& layer) {
  const int64_t inner = c.moe_intermediate_size;
  list.bf16(ffn + "gate.weight", {experts, c.hidden_size}, layer.gate_weight);
  list.f32(ffn + "gate.bias", {experts}, layer.gate_bias);
  // Image positions route with a bias of their own, which text-only checkpoints do not have.
  if (c.vision) list.f32(ffn + "gate.bias_vl", {experts}, layer.gate_bias_vl);
  list.fp8(ffn + "shared_experts.w1", inner, c.hidden_size, layer.shared.w1);
  list.fp8(ffn + "shared_experts.w2", c.hidden_size, inner, layer.shared.w2);
  list.fp8(ffn + "shared_experts.w3", inner, c.hidden_size, layer.shared.w3);
  layer.experts.resize(static_cast<size_t>(experts));
  scope.routed_expert = true;
  list.set_scope(scope);
  for (size_t e = 0; e < layer.experts.size(); ++e) {
    const std::string expert = ffn + "experts." + std::to_string(e) + ".";
    list.fp4(expert + "w1", inner, c.hidden_size, layer.experts[e].w1);
    list.fp4(expert + "w2", c.hidden_size, inner, layer.experts[e].w2);
    list.fp4(expert + "w3", inner, c.hidden_size, layer.experts[e].w3);
  }
  scope.routed_expert = false;
  list.set_scope(scope);
}

/// What backbone layers and drafter stages share. `prefix` ends with a dot.
void add_block(SlotList& list, const ModelConfig& c, const std::string& prefix, int64_t experts,
               Scope scope, LayerTensors& layer) {
  list.set_scope(scope);
  add_attention(list, c, prefix + "attn.", layer);
  list.bf16(prefix + "ffn_norm.weight", {c.hidden_size}, layer.ffn_norm);
  add_hyper_connection(list, c, prefix + "hc_attn", layer.hc_attn);
  add_hyper_connection(list, c, prefix + "hc_ffn", layer.hc_ffn);
  add_experts(list, c, prefix + "ffn.", experts, scope, layer);
}

/// The input norm, and what a KV source makes its rows with: of the boundary layer the encoder
/// needs only these.
void add_projection(SlotList& list, const ModelConfig& c, const LayerPlan& plan,
                    const std::string& prefix, LayerTensors& layer) {
  list.bf16(prefix + "attn_norm.weight", {c.hidden_size}, layer.attn_norm);
  if (!plan.writes_kv()) return;
  CompressorTensors& compressor = layer.compressor.emplace();
  const std::string compress = prefix + "attn.compressor.";
  list.bf16(compress + "wkv.weight", {c.head_dim, c.hidden_size}, compressor.wkv);
  if (plan.ratio > 1) {
    list.bf16(compress + "wgate.weight", {c.head_dim, c.hidden_size}, compressor.wgate);
  }
  list.bf16(compress + "norm.weight", {c.head_dim}, compressor.norm);
  const std::string index = prefix + "attn.indexer.";
  list.bf16(index + "wk.weight", {c.index_head_dim, c.head_dim}, layer.indexer->wk);
  list.bf16(index + "k_norm.weight", {c.index_head_dim}, layer.indexer->k_norm);
}

void add_index_query(SlotList& list, const ModelConfig& c, const std::string& prefix,
                     LayerTensors& layer) {
  const std::string index = prefix + "attn.indexer.";
  list.fp8(index + "wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank, layer.indexer->wq_b);
  list.bf16(index + "weights_proj.weight", {c.index_n_heads, c.hidden_size},
            layer.indexer->weights_proj);
}

void add_engram(SlotList& list, const ModelConfig& c, const std::string& prefix, int64_t rows,
                Scope scope, EngramTensors& engram) {
  scope.group = TensorGroup::engram_tables;
  list.set_scope(scope);
  const int64_t dim = c.engram_head_dim;
  list.add(prefix + "embed.weight", DType::e4m3, {rows, dim}, engram.embed_weight);
  list.add(prefix + "embed.scale", DType::e8m0, {rows, dim / kScaleGroup}, engram.embed_scale);
  scope.group = TensorGroup::engram_projections;
  list.set_scope(scope);
  list.fp8(prefix + "wkv", (c.hc_mult + 1) * c.hidden_size, c.engram_columns() * dim, engram.wkv);
  list.bf16(prefix + "q_weight", {c.hc_mult, c.hidden_size}, engram.q_weight);
  list.bf16(prefix + "k_weight", {c.hc_mult, c.hidden_size}, engram.k_weight);
}

void add_backbone(SlotList& list, const ModelConfig& c, const ModelPlan& plan, Checkpoint& out) {
  size_t engrams = 0;
  for (const LayerPlan& layer_plan : plan.layers) {
    const std::string prefix = "layers." + std::to_string(layer_plan.id) + ".";
    LayerTensors& layer = out.layers[static_cast<size_t>(layer_plan.id)].emplace();
    const bool encoder_half = layer_plan.half == Half::encoder;
    Scope scope{encoder_half ? TensorGroup::encoder_layers : TensorGroup::decoder_layers,
                encoder_half, true};
    scope.layer = layer_plan.id;
    add_block(list, c, prefix, c.n_routed_experts, scope, layer);
    if (layer_plan.scores()) {
      layer.indexer.emplace();
      add_index_query(list, c, prefix, layer);
    }
    if (layer_plan.has_engram) {
      add_engram(list, c, prefix + "engram.", c.engram_num_embeddings[engrams++], scope,
                 layer.engram.emplace());
    }
    scope.encoder = layer_plan.id <= plan.boundary;
    list.set_scope(scope);
    add_projection(list, c, layer_plan, prefix, layer);
  }
}

void add_drafter(SlotList& list, const ModelConfig& c, DrafterTensors& drafter) {
  const Scope scope{TensorGroup::drafter, false, true};
  drafter.stages.resize(static_cast<size_t>(c.num_nextn_predict_layers));
  for (size_t s = 0; s < drafter.stages.size(); ++s) {
    const std::string prefix = "mtp." + std::to_string(s) + ".";
    add_block(list, c, prefix, c.dspark_n_routed_experts, scope, drafter.stages[s]);
    list.bf16(prefix + "attn_norm.weight", {c.hidden_size}, drafter.stages[s].attn_norm);
  }
  const int64_t targets = static_cast<int64_t>(c.dspark_target_layer_ids.size());
  const int64_t rank = c.dspark_markov_rank;
  list.fp8("mtp.0.main_proj", c.hidden_size, targets * c.hidden_size, drafter.main_proj);
  list.bf16("mtp.0.main_norm.weight", {c.hidden_size}, drafter.main_norm);
  const std::string last = "mtp." + std::to_string(drafter.stages.size() - 1) + ".";
  list.bf16(last + "norm.weight", {c.hidden_size}, drafter.norm);
  list.bf16(last + "markov_head.embed.weight", {c.vocab_size, rank}, drafter.markov_embed);
  list.bf16(last + "markov_head.head.weight", {c.vocab_size, rank}, drafter.markov_head);
  list.bf16(last + "confidence_head.proj.weight", {1, c.hidden_size + rank},
            drafter.confidence_proj);
}

void add_vision(SlotList& list, int64_t hidden_size, const VisionConfig& v, VisionTensors& vision) {
  list.set_scope({TensorGroup::vision, false, false});
  const int64_t width = v.hidden_size;
  list.bf16("vision.patch_embed.proj.weight", {width, 3 * v.patch_size * v.patch_size},
            vision.patch_weight);
  list.bf16("vision.patch_embed.proj.bias", {width}, vision.patch_bias);
  vision.blocks.resize(static_cast<size_t>(v.num_hidden_layers));
  for (size_t b = 0; b < vision.blocks.size(); ++b) {
    const std::string prefix = "vision.blocks." + std::to_string(b) + ".";
    VisionBlockTensors& block = vision.blocks[b];
    list.bf16(prefix + "norm1.weight", {width}, block.norm1);
    list.bf16(prefix + "norm2.weight", {width}, block.norm2);
    list.bf16(prefix + "attn.wqkv.weight", {3 * width, width}, block.wqkv);
    list.bf16(prefix + "attn.wqkv.bias", {3 * width}, block.wqkv_bias);
    list.bf16(prefix + "attn.wo.weight", {width, width}, block.wo);
    list.bf16(prefix + "attn.wo.bias", {width}, block.wo_bias);
    list.bf16(prefix + "mlp.w1.weight", {2 * v.intermediate_size, width}, block.w1);
    list.bf16(prefix + "mlp.w2.weight", {width, v.intermediate_size}, block.w2);
  }
  list.bf16("vision.norm.weight", {width}, vision.norm);
  const int64_t cell = width * v.downsample_ratio * v.downsample_ratio;
  list.bf16("aligner.w1.weight", {hidden_size, cell}, vision.aligner_w1);
  list.bf16("aligner.w1.bias", {hidden_size}, vision.aligner_b1);
  list.bf16("aligner.w2.weight", {hidden_size, hidden_size}, vision.aligner_w2);
  list.bf16("aligner.w2.bias", {hidden_size}, vision.aligner_b2);
  list.bf16("image_start", {hidden_size}, vision.image_start);
  list.bf16("image_end", {hidden_size}, vision.image_end);
  list.bf16("image_newline", {hidden_size}, vision.image_newline);
}

}  // namespace

std::vector<CheckpointSlot> checkpoint_slots(const ModelConfig& config, const ModelPlan& plan,
                                             Checkpoint& out) {
  SlotList list;
  list.set_scope({TensorGroup::embed, true, true});
  list.bf16("embed.weight", {config.vocab_size, config.hidden_size}, out.embed);
  list.set_scope({TensorGroup::head, false, true});
  list.bf16("norm.weight", {config.hidden_size}, out.norm);
  list.bf16("head.weight", {config.vocab_size, config.hidden_size}, out.head);
  out.layers.resize(plan.layers.size());
  add_backbone(list, config, plan, out);
  if (config.num_nextn_predict_layers > 0) add_drafter(list, config, out.drafter.emplace());
  if (config.vision) add_vision(list, config.hidden_size, *config.vision, out.vision.emplace());
  return list.take();
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config, const ModelPlan& plan) {
  Checkpoint scratch;
  std::vector<ExpectedTensor> expected;
  for (CheckpointSlot& slot : checkpoint_slots(config, plan, scratch)) {
    expected.push_back(std::move(slot.expected));
  }
  return expected;
}

int64_t ExpectedTensor::elements() const {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

int64_t ExpectedTensor::parameters() const {
  if (dtype == DType::e8m0) return 0;
  return dtype == DType::i8 ? 2 * elements() : elements();
}

std::string_view to_string(TensorGroup group) {
  switch (group) {
    case TensorGroup::embed: return "embed";
    case TensorGroup::encoder_layers: return "encoder layers";
    case TensorGroup::decoder_layers: return "decoder layers";
    case TensorGroup::head: return "norm + head";
    case TensorGroup::engram_projections: return "Engram projections";
    case TensorGroup::engram_tables: return "Engram tables";
    case TensorGroup::drafter: return "DSpark drafter";
    case TensorGroup::vision: return "vision";
  }
  return "?";
}

}  // namespace cedar::model
