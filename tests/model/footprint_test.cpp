#include "model/footprint.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

namespace cedar::model {
namespace {

struct Model {
  explicit Model(const std::string& directory)
      : config(load_model_config(std::string(CEDAR_SOURCE_DIR) + "/" + directory).value()),
        plan(make_layer_plan(config).value()),
        footprint(make_footprint(config, plan)) {}
  ModelConfig config;
  ModelPlan plan;
  Footprint footprint;
};

TensorTotals group(const Footprint& footprint, TensorGroup wanted) {
  const auto found = std::find_if(footprint.groups.begin(), footprint.groups.end(),
                                  [wanted](const GroupTotals& g) { return g.group == wanted; });
  return found == footprint.groups.end() ? TensorTotals{} : found->totals;
}

// The figures of spec/checkpoint.md 4.5, which equal a header scan of the released shards.
TEST(Footprint, ReleaseBytesByGroup) {
  const Model release("tests/golden/release");
  const Footprint& f = release.footprint;
  EXPECT_EQ(f.all.tensors, 96'085);
  EXPECT_EQ(f.all.bytes, 510'286'023'000);
  const struct {
    TensorGroup group;
    int64_t tensors;
    int64_t bytes;
  } expected[] = {
      {TensorGroup::encoder_layers, 46'704, 147'838'599'136},
      {TensorGroup::decoder_layers, 46'699, 147'823'271'392},
      {TensorGroup::embed, 1, 1'323'827'200},
      {TensorGroup::head, 2, 1'323'837'440},
      {TensorGroup::engram_projections, 8, 315'043'840},
      {TensorGroup::engram_tables, 4, 202'758'032'400},
      {TensorGroup::drafter, 2'401, 7'932'874'632},
      {TensorGroup::vision, 266, 970'536'960},
  };
  EXPECT_EQ(f.groups.size(), std::size(expected));
  for (const auto& row : expected) {
    EXPECT_EQ(group(f, row.group).tensors, row.tensors) << to_string(row.group);
    EXPECT_EQ(group(f, row.group).bytes, row.bytes) << to_string(row.group);
  }
}

TEST(Footprint, ReleaseBytesByType) {
  const Model release("tests/golden/release");
  std::map<DType, int64_t> bytes;
  for (const ExpectedTensor& tensor : expected_tensors(release.config, release.plan)) {
    bytes[tensor.dtype] += tensor.bytes();
  }
  EXPECT_EQ(bytes[DType::bf16], 3'952'883'712);
  EXPECT_EQ(bytes[DType::f32], 169'229'128);
  EXPECT_EQ(bytes[DType::e4m3], 204'015'223'296);
  EXPECT_EQ(bytes[DType::e8m0], 23'563'015'184);
  EXPECT_EQ(bytes[DType::i8], 278'585'671'680);
}

TEST(Footprint, ReleaseBytesByRole) {
  const Model release("tests/golden/release");
  const Footprint& f = release.footprint;
  EXPECT_EQ(f.encoder.bytes, 149'482'855'648);
  EXPECT_EQ(f.encoder.bytes + f.engram_tables.bytes, 352'240'888'048);
  EXPECT_EQ(f.decoder.bytes, 298'624'579'008);
  EXPECT_EQ(f.decoder.bytes + f.drafter.bytes, 306'557'453'640);
}

TEST(Footprint, ReleaseBytesByLayer) {
  const Model release("tests/golden/release");
  std::map<std::string, int64_t> bytes;
  std::map<std::string, int64_t> boundary;
  for (const ExpectedTensor& tensor : expected_tensors(release.config, release.plan)) {
    const std::string layer = tensor.name.substr(0, tensor.name.find('.', 7));
    if (tensor.group == TensorGroup::encoder_layers ||
        tensor.group == TensorGroup::decoder_layers) {
      bytes[layer] += tensor.bytes();
    }
    if (tensor.encoder && layer == "layers.20") boundary[tensor.name] = tensor.bytes();
  }
  constexpr int64_t kPlain = 7'389'500'888;
  EXPECT_EQ(bytes["layers.0"], kPlain);
  EXPECT_EQ(bytes["layers.14"], kPlain + 16'193'792);
  EXPECT_EQ(bytes["layers.20"], kPlain + 10'950'912);
  EXPECT_EQ(bytes["layers.36"], kPlain + 5'575'680);
  EXPECT_EQ(boundary, (std::map<std::string, int64_t>{
                          {"layers.20.attn_norm.weight", 10'240},
                          {"layers.20.attn.compressor.wkv.weight", 5'242'880},
                          {"layers.20.attn.compressor.norm.weight", 1'024},
                          {"layers.20.attn.indexer.wk.weight", 131'072},
                          {"layers.20.attn.indexer.k_norm.weight", 256},
                      }));
}

TEST(Footprint, ReleaseParameters) {
  const Model release("tests/golden/release");
  const Footprint& f = release.footprint;
  EXPECT_EQ(f.all.parameters, 763'205'315'794);
  EXPECT_EQ(f.engram_tables.parameters, 196'613'849'600);
  EXPECT_EQ(f.drafter.parameters, 14'225'362'530);
  EXPECT_EQ(group(f, TensorGroup::vision).parameters, 485'268'480);
  EXPECT_NEAR(static_cast<double>(f.active_prefill_parameters), 7.9e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(f.active_decode_parameters), 16.1e9, 0.05e9);
}

TEST(Footprint, ReleaseStatePerSequence) {
  const Model release("tests/golden/release");
  const Footprint& f = release.footprint;
  EXPECT_EQ(f.layer_window_bytes, 67'584);
  EXPECT_EQ(f.window_bytes, 2'703'360);
  EXPECT_EQ(f.drafter_window_bytes, 202'752);
  EXPECT_EQ(f.handoff.encoder_windows, 1'351'680);
  EXPECT_EQ(f.handoff.open_groups, 12'288);
  EXPECT_EQ(f.handoff.boundary_rows, 5'244'928);
  EXPECT_EQ(f.handoff.ngram_history, 12);
  EXPECT_NEAR(static_cast<double>(f.handoff.total()), 6.61e6, 0.005e6);
  EXPECT_NEAR(f.kv.bytes_per_token() / kV4FlashBytesPerToken, 0.2533, 5e-5);
  EXPECT_NEAR(kV1BytesPerToken / f.kv.bytes_per_token(), 437.2, 0.05);
}

TEST(Footprint, OtherCheckpointsSumToTheirIndexes) {
  const Model mini("tests/golden/mini");
  EXPECT_EQ(mini.footprint.all.tensors, 1331);
  EXPECT_EQ(mini.footprint.all.bytes, 9'629'730);
  EXPECT_EQ(mini.footprint.handoff.open_groups, 2 * 96 * 4);
  const Model demo("config/demo");
  EXPECT_EQ(demo.footprint.all.tensors, 1131);
  EXPECT_EQ(demo.footprint.all.bytes, 27'931'110);
  EXPECT_EQ(group(demo.footprint, TensorGroup::vision).tensors, 0);
}

}  // namespace
}  // namespace cedar::model
