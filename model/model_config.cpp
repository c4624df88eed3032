#include "model/model_config.h"

#include <filesystem>

#include "core/text_file.h"
#include "model/config_checks.h"
#include "model/config_reader.h"
#include "model/layer_plan.h"

namespace cedar::model {
namespace {

using nlohmann::json;

// Limits far above any checkpoint of the family and low enough that no product of three of them
// overflows an int64 or makes a hostile file allocate gigabytes.
constexpr IntRange kWidth{1, 1 << 18};
constexpr IntRange kCount{1, 1 << 12};
constexpr IntRange kLayers{1, 1024};
constexpr IntRange kVocabulary{1, 1 << 24};
constexpr IntRange kPositions{1, int64_t{1} << 31};
constexpr IntRange kTableRows{1, int64_t{1} << 36};
constexpr IntRange kLayerId{0, 1023};

void read_sizes(ConfigReader& text, ModelConfig& out) {
  text.read("vocab_size", out.vocab_size, kVocabulary);
  text.read("hidden_size", out.hidden_size, kWidth);
  text.read("moe_intermediate_size", out.moe_intermediate_size, kWidth);
  text.read("num_hidden_layers", out.num_hidden_layers, kLayers);
  text.read("num_attention_heads", out.num_attention_heads, kCount);
  text.require("num_key_value_heads", 1);
  text.read("head_dim", out.head_dim, {2, 1 << 14});
  text.read("qk_rope_head_dim", out.qk_rope_head_dim, {2, 1 << 14});
  text.read("q_lora_rank", out.q_lora_rank, kWidth);
  text.read("o_lora_rank", out.o_lora_rank, kWidth);
  text.read("o_groups", out.o_groups, kCount);
  text.read("max_position_embeddings", out.max_position_embeddings, kPositions);
}

void read_numerics(ConfigReader& text, ModelConfig& out) {
  text.require("hidden_act", "silu");
  text.require_if_present("attention_bias", false);
  text.require_if_present("tie_word_embeddings", false);
  text.read("swiglu_limit", out.swiglu_limit, 0.0);
  text.read("rms_norm_eps", out.rms_norm_eps, 0.0);
  text.read("hc_mult", out.hc_mult, {1, 8});
  text.read("hc_sinkhorn_iters", out.hc_sinkhorn_iters, {1, 1000});
  text.read("hc_eps", out.hc_eps, 0.0);
}

Status read_rope(ConfigReader& text, ModelConfig& out) {
  text.read("rope_theta", out.rope_theta, 1.0);
  text.read("compress_rope_theta", out.compress_rope_theta, 1.0);
  ConfigReader rope(text.object("rope_scaling"), "text_config.rope_scaling.");
  CEDAR_CHECK_OK(text.status());
  rope.require("rope_type", "yarn");
  rope.read("factor", out.rope_scaling.factor, 0.0);
  rope.read("beta_fast", out.rope_scaling.beta_fast, 0.0);
  rope.read("beta_slow", out.rope_scaling.beta_slow, 0.0);
  rope.read("original_max_position_embeddings", out.rope_scaling.original_max_position_embeddings,
            kPositions);
  return rope.status();
}

void read_experts(ConfigReader& text, ModelConfig& out) {
  text.read("n_routed_experts", out.n_routed_experts, kCount);
  text.require("n_shared_experts", 1);
  out.n_shared_experts = 1;
  text.read("num_experts_per_tok", out.num_experts_per_tok, kCount);
  text.require("scoring_func", "sqrtsoftplus");
  text.require("topk_method", "noaux_tc");
  text.require("norm_topk_prob", true);
  text.read("routed_scaling_factor", out.routed_scaling_factor, 0.0);
}

void read_attention_lists(ConfigReader& text, ModelConfig& out) {
  text.read("sliding_window", out.sliding_window, {1, 1 << 16});
  text.read("compress_ratios", out.compress_ratios, {0, 1 << 16});
  text.read("kv_source_layer_ids", out.kv_source_layer_ids, kLayerId);
  text.read("index_source_layer_ids", out.index_source_layer_ids, kLayerId);
  text.read("index_n_heads", out.index_n_heads, kCount);
  text.read("index_head_dim", out.index_head_dim, {2, 1 << 14});
  text.read("index_topk", out.index_topk, {1, 1 << 20});
  text.read_or_null("candidate_source_layer_id", out.candidate_source_layer_id, kLayerId);
  if (out.candidate_source_layer_id) {
    text.read("candidate_topk_blocks", out.candidate_topk_blocks, {1, 1 << 20});
    text.read("candidate_block_size", out.candidate_block_size, {1, 1 << 20});
  }
}

void read_engram(ConfigReader& text, ModelConfig& out) {
  text.read("engram_layer_ids", out.engram_layer_ids, kLayerId);
  text.read("engram_num_embeddings", out.engram_num_embeddings, kTableRows);
  if (out.engram_layer_ids.empty()) return;
  text.read("engram_max_ngram_size", out.engram_max_ngram_size, {2, 16});
  text.read("engram_vocab_size", out.engram_vocab_size, {2, int64_t{1} << 31});
  text.read("engram_n_heads", out.engram_n_heads, {1, 256});
  text.read("engram_head_dim", out.engram_head_dim, kWidth);
  text.read("engram_pad_token_id", out.engram_pad_token_id, {0, out.vocab_size - 1});
  text.read("engram_compressed_vocab_size", out.engram_compressed_vocab_size, {1, out.vocab_size});
}

void read_drafter(ConfigReader& text, ModelConfig& out) {
  text.read("num_nextn_predict_layers", out.num_nextn_predict_layers, {0, 64});
  if (out.num_nextn_predict_layers == 0) return;
  text.read("dspark_block_size", out.dspark_block_size, {1, 1024});
  text.read("dspark_noise_token_id", out.dspark_noise_token_id, {0, out.vocab_size - 1});
  text.read("dspark_target_layer_ids", out.dspark_target_layer_ids, kLayerId);
  text.read("dspark_markov_rank", out.dspark_markov_rank, kWidth);
  text.read("dspark_n_routed_experts", out.dspark_n_routed_experts, kCount);
  text.read("dspark_num_experts_per_tok", out.dspark_num_experts_per_tok, kCount);
}

Status read_text(ConfigReader& text, ModelConfig& out) {
  text.require("model_type", "deepseek_v41_text");
  read_sizes(text, out);
  read_numerics(text, out);
  CEDAR_CHECK_OK(read_rope(text, out));
  read_experts(text, out);
  read_attention_lists(text, out);
  // The ranges of token ids below need the vocabulary's size.
  CEDAR_CHECK_OK(text.status());
  read_engram(text, out);
  read_drafter(text, out);
  return text.status();
}

Status read_vision(ConfigReader& vision, VisionConfig& out) {
  vision.require("model_type", "deepseek_v41_vision");
  vision.read("num_hidden_layers", out.num_hidden_layers, kLayers);
  vision.read("hidden_size", out.hidden_size, kWidth);
  vision.read("num_attention_heads", out.num_attention_heads, kCount);
  vision.read("intermediate_size", out.intermediate_size, kWidth);
  vision.read("patch_size", out.patch_size, {1, 1024});
  vision.read("rope_theta", out.rope_theta, 1.0);
  vision.read("downsample_ratio", out.downsample_ratio, {1, 64});
  vision.read("max_image_tokens", out.max_image_tokens, {4, 1 << 20});
  vision.read("min_pixels", out.min_pixels, {0, int64_t{1} << 40});
  vision.read_if_present("max_wh_ratio", out.max_wh_ratio, 0.0);
  return vision.status();
}

Status read_quantization(ConfigReader& quantization) {
  quantization.require("quant_method", "fp8");
  quantization.require("activation_scheme", "dynamic");
  quantization.require("weight_block_size", {32, 32});
  quantization.require("scale_fmt", "ue8m0");
  quantization.require("expert_dtype", "fp4");
  return quantization.status();
}

Status read_top(ConfigReader& top, ModelConfig& out) {
  top.require("model_type", "deepseek_v41");
  top.require("architectures", json::array({"DeepseekV41ForCausalLM"}));
  top.require("dtype", "bfloat16");
  CEDAR_CHECK_OK(top.status());

  ConfigReader text(top.object("text_config"), "text_config.");
  CEDAR_CHECK_OK(top.status());
  CEDAR_CHECK_OK(read_text(text, out));

  const IntRange token{0, out.vocab_size - 1};
  top.read("bos_token_id", out.bos_token_id, token);
  top.read("eos_token_id", out.eos_token_id, token);
  top.read("pad_token_id", out.pad_token_id, token);
  top.read_if_present("image_token_id", out.image_token_id, token);

  ConfigReader quantization(top.object("quantization_config"), "quantization_config.");
  CEDAR_CHECK_OK(top.status());
  CEDAR_CHECK_OK(read_quantization(quantization));

  if (top.has("vision_config")) {
    ConfigReader vision(top.object("vision_config"), "vision_config.");
    CEDAR_CHECK_OK(top.status());
    CEDAR_CHECK_OK(read_vision(vision, out.vision.emplace()));
  }
  return {};
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view json_text) {
  CEDAR_TRY(const json document, parse_strict_json(json_text, Errc::invalid_config));
  if (!document.is_object()) {
    return make_error(Errc::invalid_config, "expected an object, got " + short_text(document));
  }
  ModelConfig config;
  ConfigReader top(document, "");
  CEDAR_CHECK_OK(read_top(top, config));
  CEDAR_CHECK_OK(check_shapes(config));
  CEDAR_TRY([[maybe_unused]] const auto plan, make_layer_plan(config));
  config.canonical_json = document.dump();
  return config;
}

Result<ModelConfig> load_model_config(const std::string& directory) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored)) {
    return make_error(Errc::not_found, directory + ": no such directory");
  }
  const std::string path = directory + "/config.json";
  CEDAR_TRY(const std::string text, read_text_file(path));
  Result<ModelConfig> config = parse_model_config(text);
  if (!config) config.error().context.insert(0, path + ": ");
  return config;
}

}  // namespace cedar::model
