#pragma once
// The release's config.json, typed and checked (spec/checkpoint.md section 2). Unknown keys are
// ignored; missing or contradictory ones are refused with the key's full name and its value.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/result.h"

namespace cedar::model {

struct RopeScaling {
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_max_position_embeddings = 0;
};

struct VisionConfig {
  int64_t num_hidden_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t intermediate_size = 0;
  int64_t patch_size = 0;
  double rope_theta = 0;
  int64_t downsample_ratio = 0;
  int64_t max_image_tokens = 0;
  int64_t min_pixels = 0;
  std::optional<double> max_wh_ratio;
};

struct ModelConfig {
  // top level
  TokenId bos_token_id = 0;
  TokenId eos_token_id = 1;
  TokenId pad_token_id = 2;
  std::optional<TokenId> image_token_id;  // absent for text-only checkpoints

  // text_config, names as in the file
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t moe_intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t q_lora_rank = 0;
  int64_t o_lora_rank = 0;
  int64_t o_groups = 0;
  float swiglu_limit = 0;
  float rms_norm_eps = 0;
  int64_t max_position_embeddings = 0;
  double rope_theta = 0;
  double compress_rope_theta = 0;
  RopeScaling rope_scaling;
  std::vector<int64_t> compress_ratios;  // backbone layers, then possibly the DSpark layers (0)
  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 0;
  int64_t num_experts_per_tok = 0;
  float routed_scaling_factor = 1;
  int64_t sliding_window = 0;
  std::vector<LayerId> kv_source_layer_ids;
  std::vector<LayerId> index_source_layer_ids;
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  std::optional<LayerId> candidate_source_layer_id;  // null in the file: no candidate pool
  int64_t candidate_topk_blocks = 0;
  int64_t candidate_block_size = 0;
  int64_t hc_mult = 0;
  int32_t hc_sinkhorn_iters = 0;
  float hc_eps = 0;
  std::vector<LayerId> engram_layer_ids;
  std::vector<int64_t> engram_num_embeddings;
  int64_t engram_max_ngram_size = 0;
  int64_t engram_vocab_size = 0;
  int64_t engram_n_heads = 0;
  int64_t engram_head_dim = 0;
  TokenId engram_pad_token_id = 0;
  int64_t engram_compressed_vocab_size = 0;
  int64_t num_nextn_predict_layers = 0;  // DSpark stages; 0: no drafter, and no dspark_ key is read
  int64_t dspark_block_size = 0;
  TokenId dspark_noise_token_id = 0;
  std::vector<LayerId> dspark_target_layer_ids;
  int64_t dspark_markov_rank = 0;
  int64_t dspark_n_routed_experts = 0;
  int64_t dspark_num_experts_per_tok = 0;

  std::optional<VisionConfig> vision;

  /// The whole file with sorted keys and no blanks: what a fingerprint covers.
  std::string canonical_json;

  /// Columns of an Engram row set: (max_ngram - 1) * heads.
  int64_t engram_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }
  /// Tokens of one KV block: the sliding window.
  int64_t block_tokens() const { return sliding_window; }
};

/// Parses and validates what one key or one object can say; contradictions between the layer lists
/// are found by make_layer_plan, which both of these run. Errors: invalid_config naming key and
/// value.
Result<ModelConfig> parse_model_config(std::string_view json_text);
/// Reads `directory`/config.json. Errors: not_found, io_error, invalid_config (with the path).
Result<ModelConfig> load_model_config(const std::string& directory);

}  // namespace cedar::model
