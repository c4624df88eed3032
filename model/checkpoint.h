#pragma once
// Tensor names to the weights of a role, every expected tensor exactly once and none left over
// (spec/checkpoint.md sections 4 and 5).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor_view.h"
#include "model/layer_plan.h"
#include "model/model_config.h"
#include "model/safetensors.h"

namespace cedar::model {

/// A linear with block scales, FP8 (scale per 32x32) or FP4 (scale per row and 32), or without,
/// bf16 or f32.
struct LinearTensors {
  TensorView weight;
  TensorView scale;  // empty for bf16 and f32
};

struct ExpertTensors {
  LinearTensors w1, w2, w3;
};

struct HcTensors {
  TensorView fn, base, scale;
};

struct CompressorTensors {
  TensorView wkv;    // bf16 [head_dim, hidden]
  TensorView wgate;  // bf16, ratio > 1 only
  TensorView norm;
};

struct IndexerTensors {
  // KV sources
  TensorView wk, k_norm;
  // index sources
  LinearTensors wq_b;
  TensorView weights_proj;
};

struct EngramTensors {
  TensorView embed_weight;  // E4M3 [rows, dim]
  TensorView embed_scale;   // E8M0 [rows, dim / 32]
  LinearTensors wkv;
  TensorView q_weight, k_weight;
};

/// One transformer layer, of the backbone or of the drafter. Views into the mapped files.
struct LayerTensors {
  LinearTensors wq_a, wq_b, wkv, wo_a, wo_b;
  TensorView q_norm, kv_norm, attn_sink;
  TensorView attn_norm, ffn_norm;
  HcTensors hc_attn, hc_ffn;
  TensorView gate_weight, gate_bias;
  TensorView gate_bias_vl;  // empty without a vision_config
  ExpertTensors shared;
  std::vector<ExpertTensors> experts;
  std::optional<CompressorTensors> compressor;
  std::optional<IndexerTensors> indexer;
  std::optional<EngramTensors> engram;
};

struct DrafterTensors {
  std::vector<LayerTensors> stages;
  LinearTensors main_proj;
  TensorView main_norm, norm, markov_embed, markov_head, confidence_proj;
};

struct VisionBlockTensors {
  TensorView norm1, norm2, wqkv, wqkv_bias, wo, wo_bias, w1, w2;
};
struct VisionTensors {
  TensorView patch_weight, patch_bias, norm;
  std::vector<VisionBlockTensors> blocks;
  TensorView aligner_w1, aligner_b1, aligner_w2, aligner_b2;
  TensorView image_start, image_end, image_newline;
};

enum class Role : uint8_t { all, encoder, decoder };
std::string_view to_string(Role role);

/// What a role loads. A layer that the role does not hold is absent; of the boundary layer the
/// encoder role holds only what projects the decoder's global KV: attn_norm, compressor, indexer.wk
/// and k_norm. The drafter belongs to the decoder role; vision is loaded with Role::all only.
/// A part of a role's layers holds nothing of the others: the embedding belongs to the first part,
/// that projection to the encoder's last, norm, head and drafter to the last of all (with a second
/// embedding, which drafting reads).
struct Checkpoint {
  ModelConfig config;
  ModelPlan plan;
  Role role = Role::all;
  LayerRange range;  // the role's layers, or the part of them that was asked for
  TensorView embed, norm, head;
  std::vector<std::optional<LayerTensors>> layers;  // num_hidden_layers entries
  std::optional<DrafterTensors> drafter;
  std::optional<VisionTensors> vision;
  int64_t tensor_count = 0;  // of this role and range
  int64_t bytes = 0;         // the same, Engram tables included
  int64_t engram_table_bytes = 0;
  std::vector<std::shared_ptr<const SafetensorsFile>> files;  // keep the views alive
};

/// Maps the files and checks every header; reads no weight. Views of packed FP4 have dtype e2m1x2.
/// Shards that hold nothing for the role need not exist. Tensors of other roles must still be known
/// names: an unknown tensor is refused for every role.
/// `part`: only these of the role's layers; the files of the whole role are needed nevertheless, because all parts must
/// show that they have the same weights (model_fingerprint).
/// Errors: those of load_model_config; not_found without weights; invalid_checkpoint naming tensor,
/// file, expected and found shape and dtype, or the tensors that are missing or left over;
/// invalid_argument naming a part that the role does not have.
Result<Checkpoint> load_checkpoint(const std::string& directory, Role role,
                                   std::optional<LayerRange> part = {});

/// The layers of a role.
LayerRange layers_of(Role role, const ModelPlan& plan);
/// Errors: invalid_argument naming the range and what the role has.
Status check_part(LayerRange part, Role role, const ModelPlan& plan);

}  // namespace cedar::model
