#include "model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_directory.h"

namespace cedar::model {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const std::string kRoot = CEDAR_SOURCE_DIR;

json mini() { return json::parse(test::read_file(kRoot + "/tests/golden/mini/config.json")); }

/// The error of a config; fails the test when there is none.
Error refusal(const std::string& text) {
  const Result<ModelConfig> config = parse_model_config(text);
  EXPECT_FALSE(config.has_value());
  return config ? Error{} : config.error();
}
Error refusal(const json& document) { return refusal(document.dump()); }

void expect_refused(const std::string& pointer, const json& value, const std::string& key,
                    const std::string& shown) {
  json document = mini();
  document[json::json_pointer(pointer)] = value;
  const Error error = refusal(document);
  EXPECT_EQ(error.code, Errc::invalid_config);
  EXPECT_THAT(error.context, AllOf(HasSubstr(key), HasSubstr(shown))) << pointer << " = " << value;
}

TEST(ModelConfig, ReadsMini) {
  const auto config = load_model_config(kRoot + "/tests/golden/mini");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->vocab_size, 1237);
  EXPECT_EQ(config->hidden_size, 160);
  EXPECT_EQ(config->head_dim, 96);
  EXPECT_EQ(config->qk_rope_head_dim, 24);
  EXPECT_EQ(config->compress_ratios.size(), 13u);
  EXPECT_EQ(config->image_token_id, 1236);
  EXPECT_FLOAT_EQ(config->rms_norm_eps, 1e-20f);
  EXPECT_FLOAT_EQ(config->swiglu_limit, 2.5f);
  EXPECT_FLOAT_EQ(config->hc_eps, 1e-5f);
  EXPECT_EQ(config->rope_scaling.factor, 4);
  EXPECT_EQ(config->rope_scaling.original_max_position_embeddings, 256);
  EXPECT_EQ(config->compress_rope_theta, 40000);
  EXPECT_EQ(config->candidate_source_layer_id, 6);
  EXPECT_EQ(config->engram_layer_ids, (std::vector<LayerId>{0, 3}));
  EXPECT_EQ(config->engram_columns(), 6);
  EXPECT_EQ(config->block_tokens(), 36);
  EXPECT_EQ(config->dspark_target_layer_ids, (std::vector<LayerId>{6, 8, 10}));
  ASSERT_TRUE(config->vision);
  EXPECT_EQ(config->vision->patch_size, 10);
  EXPECT_FALSE(config->vision->max_wh_ratio);
}

TEST(ModelConfig, ReadsReleaseAndDemo) {
  const auto release = load_model_config(kRoot + "/tests/golden/release");
  ASSERT_TRUE(release) << release.error().message();
  EXPECT_EQ(release->num_hidden_layers, 40);
  EXPECT_EQ(release->max_position_embeddings, 1 << 20);
  EXPECT_EQ(release->engram_num_embeddings, (std::vector<int64_t>{384006168, 384016682}));
  ASSERT_TRUE(release->vision);
  EXPECT_EQ(release->vision->num_hidden_layers, 32);

  const auto demo = load_model_config(kRoot + "/config/demo");
  ASSERT_TRUE(demo) << demo.error().message();
  EXPECT_FALSE(demo->vision);
  EXPECT_EQ(demo->image_token_id, 4095);
}

TEST(ModelConfig, IgnoresUnknownKeysAndBlanksInTheFingerprint) {
  json document = mini();
  document["transformers_version"] = "5.0.0";
  document["text_config"]["use_cache"] = "whatever";
  EXPECT_TRUE(parse_model_config(document.dump()));
  EXPECT_EQ(parse_model_config(mini().dump())->canonical_json,
            parse_model_config(mini().dump(4))->canonical_json);
}

TEST(ModelConfig, AcceptsBothPublishedCopies) {
  json document = mini();
  document["text_config"].erase("attention_bias");
  document["text_config"].erase("tie_word_embeddings");
  // One copy lists ratios for the backbone alone.
  document["text_config"]["compress_ratios"] = {0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1};
  EXPECT_TRUE(parse_model_config(document.dump()));
}

TEST(ModelConfig, OptionalPartsMayBeAbsent) {
  json document = mini();
  document.erase("vision_config");
  document.erase("image_token_id");
  json& text = document["text_config"];
  text["num_nextn_predict_layers"] = 0;
  for (const char* key :
       {"dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids",
        "dspark_markov_rank", "dspark_n_routed_experts", "dspark_num_experts_per_tok"}) {
    text.erase(key);
  }
  text["compress_ratios"] = {0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1};
  text["candidate_source_layer_id"] = nullptr;
  text["engram_layer_ids"] = json::array();
  text["engram_num_embeddings"] = json::array();
  const auto config = parse_model_config(document.dump());
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_FALSE(config->image_token_id);
  EXPECT_FALSE(config->candidate_source_layer_id);
}

TEST(ModelConfig, NamesEveryMissingKey) {
  for (const std::string parent : {"", "/text_config", "/text_config/rope_scaling",
                                   "/quantization_config", "/vision_config"}) {
    const json keys = mini()[json::json_pointer(parent)];
    for (const auto& [key, value] : keys.items()) {
      json document = mini();
      document[json::json_pointer(parent)].erase(key);
      const auto config = parse_model_config(document.dump());
      const bool optional = key == "attention_bias" || key == "tie_word_embeddings" ||
                            key == "attention_dropout" || key == "initializer_range" ||
                            key == "use_cache" || key == "max_wh_ratio" || key == "vision_config";
      EXPECT_EQ(config.has_value(), optional) << parent << "/" << key;
      if (!config) {
        EXPECT_EQ(config.error().code, Errc::invalid_config);
        EXPECT_THAT(config.error().context, AllOf(HasSubstr(key), HasSubstr("missing")));
      }
    }
  }
}

TEST(ModelConfig, RefusesOtherModels) {
  expect_refused("/model_type", "deepseek_v4", "model_type", "\"deepseek_v4\"");
  expect_refused("/architectures", json::array({"LlamaForCausalLM"}), "architectures",
                 "LlamaForCausalLM");
  expect_refused("/dtype", "float16", "dtype", "float16");
  expect_refused("/text_config/model_type", "llama", "text_config.model_type", "llama");
  expect_refused("/text_config/hidden_act", "gelu", "text_config.hidden_act", "gelu");
  expect_refused("/text_config/scoring_func", "softmax", "text_config.scoring_func", "softmax");
  expect_refused("/text_config/topk_method", "greedy", "text_config.topk_method", "greedy");
  expect_refused("/text_config/norm_topk_prob", false, "text_config.norm_topk_prob", "false");
  expect_refused("/text_config/attention_bias", true, "text_config.attention_bias", "true");
  expect_refused("/text_config/tie_word_embeddings", true, "text_config.tie_word_embeddings",
                 "true");
  expect_refused("/text_config/num_key_value_heads", 2, "text_config.num_key_value_heads", "2");
  expect_refused("/text_config/n_shared_experts", 2, "text_config.n_shared_experts", "2");
  expect_refused("/text_config/rope_scaling/rope_type", "linear",
                 "text_config.rope_scaling.rope_type", "linear");
  expect_refused("/quantization_config/quant_method", "awq", "quantization_config.quant_method",
                 "awq");
  expect_refused("/quantization_config/weight_block_size", {128, 128},
                 "quantization_config.weight_block_size", "[128,128]");
  expect_refused("/quantization_config/scale_fmt", "float", "quantization_config.scale_fmt",
                 "float");
  expect_refused("/quantization_config/expert_dtype", "int4", "quantization_config.expert_dtype",
                 "int4");
  expect_refused("/vision_config/model_type", "siglip", "vision_config.model_type", "siglip");
}

TEST(ModelConfig, RefusesWrongTypesAndRanges) {
  expect_refused("/text_config", "text", "text_config", "\"text\"");
  expect_refused("/text_config/hidden_size", "160", "text_config.hidden_size", "\"160\"");
  expect_refused("/text_config/hidden_size", 160.5, "text_config.hidden_size", "160.5");
  expect_refused("/text_config/hidden_size", nullptr, "text_config.hidden_size", "null");
  expect_refused("/text_config/hidden_size", 0, "text_config.hidden_size", "0");
  expect_refused("/text_config/hidden_size", -32, "text_config.hidden_size", "-32");
  expect_refused("/text_config/hidden_size", 18446744073709551615u, "text_config.hidden_size",
                 "18446744073709551615");
  expect_refused("/text_config/rms_norm_eps", 0, "text_config.rms_norm_eps", "0");
  expect_refused("/text_config/rms_norm_eps", 1e-60, "text_config.rms_norm_eps", "1e-60");
  expect_refused("/text_config/swiglu_limit", 1e300, "text_config.swiglu_limit", "1e+300");
  expect_refused("/text_config/rope_theta", true, "text_config.rope_theta", "true");
  expect_refused("/text_config/compress_ratios", 2, "text_config.compress_ratios", "2");
  expect_refused("/text_config/compress_ratios/3", -2, "text_config.compress_ratios[3]", "-2");
  expect_refused("/text_config/kv_source_layer_ids/1", "6", "text_config.kv_source_layer_ids[1]",
                 "\"6\"");
  expect_refused("/text_config/engram_pad_token_id", 1237, "text_config.engram_pad_token_id",
                 "1237");
  expect_refused("/text_config/engram_compressed_vocab_size", 1238,
                 "text_config.engram_compressed_vocab_size", "1238");
  expect_refused("/text_config/dspark_noise_token_id", 1237, "text_config.dspark_noise_token_id",
                 "1237");
  expect_refused("/bos_token_id", 1237, "bos_token_id", "1237");
  expect_refused("/image_token_id", -1, "image_token_id", "-1");
  expect_refused("/vision_config", 7, "vision_config", "7");
}

TEST(ModelConfig, RefusesSizesThatDoNotFitTogether) {
  expect_refused("/text_config/hidden_size", 161, "text_config.hidden_size", "161");
  expect_refused("/text_config/moe_intermediate_size", 100, "text_config.moe_intermediate_size",
                 "100");
  expect_refused("/text_config/head_dim", 100, "text_config.head_dim", "100");
  expect_refused("/text_config/q_lora_rank", 65, "text_config.q_lora_rank", "65");
  expect_refused("/text_config/index_head_dim", 40, "text_config.index_head_dim", "40");
  expect_refused("/text_config/engram_head_dim", 65, "text_config.engram_head_dim", "65");
  expect_refused("/text_config/o_lora_rank", 33, "text_config.o_lora_rank", "33");
  expect_refused("/text_config/o_groups", 4, "text_config.o_groups", "num_attention_heads (6)");
  expect_refused("/text_config/qk_rope_head_dim", 25, "text_config.qk_rope_head_dim", "25");
  expect_refused("/text_config/qk_rope_head_dim", 64, "text_config.qk_rope_head_dim",
                 "index_head_dim (32)");
  expect_refused("/text_config/rope_scaling/beta_fast", 1, "text_config.rope_scaling.beta_fast",
                 "beta_slow");
  expect_refused("/text_config/num_experts_per_tok", 13, "text_config.num_experts_per_tok", "13");
  expect_refused("/text_config/dspark_num_experts_per_tok", 7,
                 "text_config.dspark_num_experts_per_tok", "7");
  expect_refused("/vision_config/num_attention_heads", 5, "vision_config.num_attention_heads", "5");
}

TEST(ModelConfig, RefusesTextThatIsNoConfig) {
  EXPECT_THAT(refusal(std::string()).context, HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(std::string("{\"model_type\": ")).context, HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(std::string("[1, 2]")).context, HasSubstr("expected an object"));
  EXPECT_THAT(refusal(std::string("{\"a\": 1, \"b\": {\"c\": 1, \"c\": 2}}")).context,
              AllOf(HasSubstr("\"c\""), HasSubstr("twice")));
  EXPECT_THAT(refusal(std::string(1000, '[') + std::string(1000, ']')).context,
              HasSubstr("deeply"));
  const std::string with_nul = mini().dump() + std::string("\0 {}", 4);
  EXPECT_THAT(refusal(with_nul).context, HasSubstr("NUL"));
}

TEST(ModelConfig, NamesTheFile) {
  const test::TempDirectory directory;
  const auto absent = load_model_config(directory.path());
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, Errc::not_found);
  EXPECT_THAT(absent.error().context, HasSubstr(directory.file("config.json")));

  directory.write("config.json", "{}");
  const auto empty = load_model_config(directory.path());
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().code, Errc::invalid_config);
  EXPECT_THAT(empty.error().context, AllOf(HasSubstr("config.json"), HasSubstr("model_type")));
}

}  // namespace
}  // namespace cedar::model
