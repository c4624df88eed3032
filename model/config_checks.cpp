#include "model/config_checks.h"

#include <string>

namespace cedar::model {
namespace {

Error refused(const std::string& key, int64_t value, const std::string& rule) {
  return make_error(Errc::invalid_config, key + ": got " + std::to_string(value) + ", " + rule);
}

/// Inputs of FP8 and FP4 linears and cache rows are quantised in whole groups of 32.
Status check_groups(const ModelConfig& c) {
  const struct {
    const char* key;
    int64_t value;
  } grouped[] = {
      {"text_config.hidden_size", c.hidden_size},
      {"text_config.moe_intermediate_size", c.moe_intermediate_size},
      {"text_config.head_dim", c.head_dim},
      {"text_config.q_lora_rank", c.q_lora_rank},
      {"text_config.index_head_dim", c.index_head_dim},
      {"text_config.engram_head_dim", c.engram_head_dim},
  };
  for (const auto& entry : grouped) {
    if (entry.value % 32 != 0) return refused(entry.key, entry.value, "expected a multiple of 32");
  }
  if (c.o_groups * c.o_lora_rank % 32 != 0) {
    return refused(
        "text_config.o_lora_rank", c.o_lora_rank,
        "expected o_groups (" + std::to_string(c.o_groups) + ") times it to be a multiple of 32");
  }
  return {};
}

Status check_heads(const ModelConfig& c) {
  if (c.num_attention_heads % c.o_groups != 0) {
    return refused("text_config.o_groups", c.o_groups,
                   "expected a divisor of num_attention_heads (" +
                       std::to_string(c.num_attention_heads) + ")");
  }
  if (c.qk_rope_head_dim % 2 != 0 || c.qk_rope_head_dim > c.head_dim ||
      c.qk_rope_head_dim > c.index_head_dim) {
    return refused("text_config.qk_rope_head_dim", c.qk_rope_head_dim,
                   "expected an even number of at most head_dim (" + std::to_string(c.head_dim) +
                       ") and index_head_dim (" + std::to_string(c.index_head_dim) + ")");
  }
  if (c.rope_scaling.beta_fast < c.rope_scaling.beta_slow) {
    return make_error(Errc::invalid_config, "text_config.rope_scaling.beta_fast: got " +
                                                std::to_string(c.rope_scaling.beta_fast) +
                                                ", expected at least beta_slow (" +
                                                std::to_string(c.rope_scaling.beta_slow) + ")");
  }
  return {};
}

Status check_experts(const char* key, int64_t top, const char* count_key, int64_t count) {
  if (top <= count) return {};
  return refused(key, top,
                 std::string("expected at most ") + count_key + " (" + std::to_string(count) + ")");
}

Status check_vision(const ModelConfig& c) {
  if (!c.vision) return {};
  const VisionConfig& v = *c.vision;
  if (!c.image_token_id) {
    return make_error(Errc::invalid_config,
                      "image_token_id: the key is missing, and vision_config needs it");
  }
  // A quarter of a head's width turns with the row, a quarter with the column, each in pairs.
  if (v.hidden_size % v.num_attention_heads != 0 ||
      v.hidden_size / v.num_attention_heads % 4 != 0) {
    return refused("vision_config.num_attention_heads", v.num_attention_heads,
                   "expected hidden_size (" + std::to_string(v.hidden_size) +
                       ") divided by it to be a multiple of 4");
  }
  return {};
}

}  // namespace

Status check_shapes(const ModelConfig& c) {
  CEDAR_CHECK_OK(check_groups(c));
  CEDAR_CHECK_OK(check_heads(c));
  CEDAR_CHECK_OK(check_experts("text_config.num_experts_per_tok", c.num_experts_per_tok,
                               "n_routed_experts", c.n_routed_experts));
  CEDAR_CHECK_OK(check_experts("text_config.dspark_num_experts_per_tok",
                               c.dspark_num_experts_per_tok, "dspark_n_routed_experts",
                               c.dspark_n_routed_experts));
  return check_vision(c);
}

}  // namespace cedar::model
