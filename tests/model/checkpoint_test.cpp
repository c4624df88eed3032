#include "model/checkpoint.h"

#include <functional>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/expected_tensors.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_directory.h"

namespace cedar::model {
namespace {

using test::RawTensor;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kMini = std::string(CEDAR_SOURCE_DIR) + "/tests/golden/mini";

/// A copy of mini in one file, whose tensors a test may edit.
class EditedMini {
 public:
  EditedMini() {
    const CheckpointFiles files = open_checkpoint_files(kMini).value();
    for (const auto& [name, tensor] : files.tensors) {
      tensors_.emplace(name, test::raw_copy(name, tensor.view));
    }
  }
  std::map<std::string, RawTensor>& tensors() { return tensors_; }

  /// Loads the edited copy.
  Result<Checkpoint> load(Role role = Role::all) const {
    std::vector<RawTensor> list;
    for (const auto& [name, tensor] : tensors_) list.push_back(tensor);
    directory_.write("config.json", test::read_file(kMini + "/config.json"));
    directory_.write("model.safetensors", test::safetensors_file(list));
    return load_checkpoint(directory_.path(), role);
  }
  std::string refusal(Role role = Role::all) const {
    const auto loaded = load(role);
    EXPECT_FALSE(loaded);
    if (loaded) return "";
    EXPECT_EQ(loaded.error().code, Errc::invalid_checkpoint);
    return loaded.error().context;
  }

 private:
  std::map<std::string, RawTensor> tensors_;
  test::TempDirectory directory_;
};

TEST(Checkpoint, LoadsMiniWhole) {
  const auto loaded = load_checkpoint(kMini, Role::all);
  ASSERT_TRUE(loaded) << loaded.error().message();
  EXPECT_EQ(loaded->tensor_count, 1331);
  EXPECT_EQ(loaded->bytes, 9'629'730);
  EXPECT_EQ(loaded->engram_table_bytes, (1872 + 2112) * 66);
  EXPECT_EQ(loaded->files.size(), 4u);
  ASSERT_EQ(loaded->layers.size(), 11u);

  const LayerTensors& source = *loaded->layers[2];
  EXPECT_EQ(source.wq_b.weight.dtype, DType::e4m3);
  EXPECT_EQ(source.wq_b.weight.shape, (std::vector<int64_t>{576, 64}));
  EXPECT_EQ(source.wq_b.scale.shape, (std::vector<int64_t>{18, 2}));
  ASSERT_EQ(source.experts.size(), 12u);
  EXPECT_EQ(source.experts[11].w2.weight.dtype, DType::e2m1x2);
  EXPECT_EQ(source.experts[11].w2.weight.shape, (std::vector<int64_t>{160, 48}));
  EXPECT_EQ(source.experts[11].w2.scale.shape, (std::vector<int64_t>{160, 3}));
  ASSERT_TRUE(source.compressor && source.indexer);
  EXPECT_FALSE(source.compressor->wgate.empty());
  EXPECT_FALSE(source.indexer->wk.empty());

  const LayerTensors& reindex = *loaded->layers[4];
  EXPECT_FALSE(reindex.compressor);
  ASSERT_TRUE(reindex.indexer);
  EXPECT_TRUE(reindex.indexer->wk.empty());
  EXPECT_FALSE(reindex.indexer->weights_proj.empty());
  EXPECT_FALSE(loaded->layers[5]->indexer);
  EXPECT_TRUE(loaded->layers[6]->compressor->wgate.empty());
  EXPECT_TRUE(loaded->layers[0]->engram && loaded->layers[3]->engram);

  ASSERT_TRUE(loaded->drafter && loaded->vision);
  EXPECT_EQ(loaded->drafter->stages.size(), 2u);
  EXPECT_EQ(loaded->drafter->main_proj.weight.shape, (std::vector<int64_t>{160, 480}));
  EXPECT_EQ(loaded->vision->blocks.size(), 3u);
}

TEST(Checkpoint, BindsEveryTensorToItsOwnBytes) {
  const Checkpoint loaded = load_checkpoint(kMini, Role::all).value();
  const CheckpointFiles files = open_checkpoint_files(kMini).value();
  const auto same = [&](const TensorView& view, const std::string& name) {
    const TensorView& expected = files.tensors.at(name).view;
    EXPECT_EQ(
        std::string_view(static_cast<const char*>(view.data), static_cast<size_t>(view.bytes())),
        std::string_view(static_cast<const char*>(expected.data),
                         static_cast<size_t>(expected.bytes())))
        << name;
  };
  same(loaded.embed, "embed.weight");
  same(loaded.head, "head.weight");
  same(loaded.norm, "norm.weight");
  same(loaded.layers[3]->engram->k_weight, "layers.3.engram.k_weight");
  same(loaded.layers[7]->hc_ffn.scale, "layers.7.hc_ffn_scale");
  same(loaded.layers[7]->hc_attn.fn, "layers.7.hc_attn_fn");
  same(loaded.layers[7]->gate_bias_vl, "layers.7.ffn.gate.bias_vl");
  same(loaded.layers[7]->shared.w2.scale, "layers.7.ffn.shared_experts.w2.scale");
  same(loaded.layers[7]->experts[4].w3.weight, "layers.7.ffn.experts.4.w3.weight");
  same(loaded.layers[9]->indexer->wq_b.weight, "layers.9.attn.indexer.wq_b.weight");
  same(loaded.drafter->stages[1].attn_sink, "mtp.1.attn.attn_sink");
  same(loaded.drafter->markov_head, "mtp.1.markov_head.head.weight");
  same(loaded.vision->blocks[2].w1, "vision.blocks.2.mlp.w1.weight");
  same(loaded.vision->aligner_b2, "aligner.w2.bias");
  same(loaded.vision->image_newline, "image_newline");
}

TEST(Checkpoint, LoadsDemo) {
  const auto loaded = load_checkpoint(std::string(CEDAR_SOURCE_DIR) + "/config/demo", Role::all);
  ASSERT_TRUE(loaded) << loaded.error().message();
  EXPECT_EQ(loaded->tensor_count, 1131);
  EXPECT_EQ(loaded->bytes, 27'931'110);
  EXPECT_FALSE(loaded->vision);
}

TEST(Checkpoint, EncoderKeepsFiveTensorsOfTheBoundary) {
  const auto loaded = load_checkpoint(kMini, Role::encoder);
  ASSERT_TRUE(loaded) << loaded.error().message();
  EXPECT_TRUE(loaded->head.empty());
  EXPECT_TRUE(loaded->norm.empty());
  EXPECT_FALSE(loaded->drafter || loaded->vision);
  for (size_t i = 7; i < 11; ++i) EXPECT_FALSE(loaded->layers[i]) << i;
  ASSERT_TRUE(loaded->layers[5]);
  EXPECT_EQ(loaded->layers[5]->experts.size(), 12u);

  ASSERT_TRUE(loaded->layers[6]);
  const LayerTensors& boundary = *loaded->layers[6];
  EXPECT_FALSE(boundary.attn_norm.empty());
  EXPECT_FALSE(boundary.compressor->wkv.empty());
  EXPECT_FALSE(boundary.compressor->norm.empty());
  EXPECT_FALSE(boundary.indexer->wk.empty());
  EXPECT_FALSE(boundary.indexer->k_norm.empty());
  EXPECT_TRUE(boundary.indexer->wq_b.weight.empty());
  EXPECT_TRUE(boundary.indexer->weights_proj.empty());
  EXPECT_TRUE(boundary.wq_a.weight.empty());
  EXPECT_TRUE(boundary.experts.empty());

  int64_t expected_count = 0;
  for (const ExpectedTensor& tensor : expected_tensors(loaded->config, loaded->plan)) {
    expected_count += tensor.encoder;
  }
  EXPECT_EQ(loaded->tensor_count, expected_count);
}

TEST(Checkpoint, DecoderHoldsAllLayersAndTheDrafter) {
  const auto loaded = load_checkpoint(kMini, Role::decoder);
  ASSERT_TRUE(loaded) << loaded.error().message();
  for (const auto& layer : loaded->layers) EXPECT_TRUE(layer.has_value());
  EXPECT_FALSE(loaded->head.empty());
  EXPECT_TRUE(loaded->drafter.has_value());
  EXPECT_FALSE(loaded->vision);
}

TEST(Checkpoint, ARoleDoesNotNeedTheShardsOfOthers) {
  const EditedMini mini;
  const test::TempDirectory directory;
  const ModelConfig config = load_model_config(kMini).value();
  std::vector<RawTensor> encoder;
  nlohmann::json weight_map;
  EditedMini edited;
  for (const ExpectedTensor& tensor : expected_tensors(config, make_layer_plan(config).value())) {
    weight_map[tensor.name] = tensor.encoder ? "encoder.safetensors" : "elsewhere.safetensors";
    if (tensor.encoder) encoder.push_back(edited.tensors().at(tensor.name));
  }
  directory.write("config.json", test::read_file(kMini + "/config.json"));
  directory.write("encoder.safetensors", test::safetensors_file(encoder));
  directory.write("model.safetensors.index.json",
                  nlohmann::json{{"weight_map", weight_map}}.dump());

  const auto loaded = load_checkpoint(directory.path(), Role::encoder);
  EXPECT_TRUE(loaded) << loaded.error().message();
  const auto decoder = load_checkpoint(directory.path(), Role::decoder);
  ASSERT_FALSE(decoder);
  EXPECT_THAT(decoder.error().context, HasSubstr("elsewhere.safetensors"));

  // A name that no role knows is refused although its shard is not opened.
  weight_map["mtp.9.surprise"] = "elsewhere.safetensors";
  directory.write("model.safetensors.index.json",
                  nlohmann::json{{"weight_map", weight_map}}.dump());
  const auto surprised = load_checkpoint(directory.path(), Role::encoder);
  ASSERT_FALSE(surprised);
  EXPECT_THAT(surprised.error().context, HasSubstr("mtp.9.surprise"));
}

// Field report B40: a drafter ran with tensors dropped in silence, at a fraction of its acceptance.
TEST(Checkpoint, RefusesAMissingDraftTensorByName) {
  for (const char* name :
       {"mtp.0.main_norm.weight", "mtp.1.markov_head.embed.weight", "mtp.0.hc_ffn_scale",
        "mtp.1.ffn.experts.5.w2.scale", "mtp.1.confidence_head.proj.weight"}) {
    EditedMini mini;
    ASSERT_EQ(mini.tensors().erase(name), 1u);
    EXPECT_THAT(mini.refusal(),
                AllOf(HasSubstr("missing"), HasSubstr(name), Not(HasSubstr("explain"))));
    EXPECT_THAT(mini.refusal(Role::decoder), HasSubstr(name));
    EXPECT_TRUE(mini.load(Role::encoder)) << "the encoder role has no drafter";
  }
}

TEST(Checkpoint, RefusesAMissingBackboneTensorByName) {
  for (const char* name : {"head.weight", "layers.2.attn.compressor.wgate.weight",
                           "layers.4.attn.indexer.weights_proj.weight", "layers.7.attn.attn_sink",
                           "layers.3.engram.embed.scale", "aligner.w2.bias"}) {
    EditedMini mini;
    ASSERT_EQ(mini.tensors().erase(name), 1u);
    EXPECT_THAT(mini.refusal(), AllOf(HasSubstr("missing"), HasSubstr(name)));
  }
}

TEST(Checkpoint, RefusesLeftOverTensors) {
  EditedMini mini;
  mini.tensors().emplace("layers.11.attn.wkv.weight",
                         test::zeros("layers.11.attn.wkv.weight", "F8_E4M3", {96, 160}));
  for (Role role : {Role::all, Role::encoder, Role::decoder}) {
    EXPECT_THAT(mini.refusal(role),
                AllOf(HasSubstr("layers.11.attn.wkv.weight"), HasSubstr("explain")));
  }
}

TEST(Checkpoint, ARenamedTensorShowsBothNames) {
  EditedMini mini;
  RawTensor renamed = mini.tensors().at("norm.weight");
  renamed.name = "model.norm.weight";
  mini.tensors().erase("norm.weight");
  mini.tensors().emplace(renamed.name, renamed);
  EXPECT_THAT(mini.refusal(), AllOf(HasSubstr("missing tensors: norm.weight"),
                                    HasSubstr("explain: model.norm.weight")));
}

TEST(Checkpoint, RefusesWrongTypesAndShapes) {
  const auto refused = [](const RawTensor& wrong, const std::string& expected,
                          const std::string& found) {
    EditedMini mini;
    mini.tensors().at(wrong.name) = wrong;
    EXPECT_THAT(mini.refusal(), AllOf(HasSubstr(wrong.name), HasSubstr("expected " + expected),
                                      HasSubstr("found " + found), HasSubstr("model.safetensors")));
  };
  refused(test::zeros("layers.2.attn.wkv.weight", "BF16", {96, 160}), "F8_E4M3 [96, 160]",
          "BF16 [96, 160]");
  refused(test::zeros("layers.2.attn.wkv.weight", "F8_E4M3", {96, 128}), "F8_E4M3 [96, 160]",
          "F8_E4M3 [96, 128]");
  refused(test::zeros("layers.2.attn.wkv.scale", "F8_E8M0", {3, 4}), "F8_E8M0 [3, 5]",
          "F8_E8M0 [3, 4]");
  refused(test::zeros("layers.2.ffn.experts.3.w1.weight", "U8", {96, 80}), "I8 [96, 80]",
          "U8 [96, 80]");
  refused(test::zeros("layers.2.ffn.gate.bias", "BF16", {12}), "F32 [12]", "BF16 [12]");
  refused(test::zeros("layers.0.engram.embed.weight", "F8_E4M3", {1873, 64}), "F8_E4M3 [1872, 64]",
          "F8_E4M3 [1873, 64]");
  refused(test::zeros("embed.weight", "BF16", {160, 1237}), "BF16 [1237, 160]", "BF16 [160, 1237]");
}

TEST(Checkpoint, NamesAnAbsentConfigOrAbsentWeights) {
  const test::TempDirectory directory;
  EXPECT_EQ(load_checkpoint(directory.path(), Role::all).error().code, Errc::not_found);
  directory.write("config.json", test::read_file(kMini + "/config.json"));
  const auto no_weights = load_checkpoint(directory.path(), Role::all);
  ASSERT_FALSE(no_weights);
  EXPECT_EQ(no_weights.error().code, Errc::not_found);
  EXPECT_THAT(no_weights.error().context, HasSubstr("no weights found"));
}

}  // namespace
}  // namespace cedar::model
