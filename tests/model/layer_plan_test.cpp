#include "model/layer_plan.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cedar::model {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ModelConfig config_of(const std::string& directory) {
  return load_model_config(std::string(CEDAR_SOURCE_DIR) + "/" + directory).value();
}
ModelConfig mini() { return config_of("tests/golden/mini"); }

TEST(LayerPlan, ReleaseIsTheTableOfTheSpecification) {
  const ModelPlan plan = make_layer_plan(config_of("tests/golden/release")).value();
  ASSERT_EQ(plan.layers.size(), 40u);
  EXPECT_EQ(plan.boundary, 20);
  EXPECT_EQ(plan.encoder_layers(), 20);
  EXPECT_EQ(plan.decoder_layers(), 20);
  EXPECT_EQ(plan.exact_replay_rows(128), 2541);

  int counts[4] = {};
  for (const LayerPlan& layer : plan.layers) {
    const LayerId id = layer.id;
    ++counts[static_cast<int>(layer.mode)];
    EXPECT_EQ(layer.half, id < 20 ? Half::encoder : Half::decoder);
    EXPECT_EQ(layer.has_engram, id == 1 || id == 14);
    EXPECT_EQ(layer.is_draft_target, id >= 37);
    EXPECT_EQ(layer.makes_candidates, id == 20);
    EXPECT_EQ(layer.uses_candidates, id == 24 || id == 28 || id == 32 || id == 36) << id;
    if (id < 2) {
      EXPECT_EQ(layer.mode, LayerMode::window_only);
      EXPECT_FALSE(layer.kv_source || layer.index_source);
      continue;
    }
    const LayerId source = id < 8 ? 2 : id < 14 ? 8 : id < 20 ? 14 : 20;
    EXPECT_EQ(layer.kv_source, source) << id;
    EXPECT_EQ(layer.index_source, id < 24 ? source : id / 4 * 4) << id;
    EXPECT_EQ(layer.ratio, id < 20 ? 2 : 1);
    EXPECT_EQ(layer.writes_kv(), id == source);
  }
  EXPECT_THAT(counts, testing::ElementsAre(2, 4, 4, 30));
  EXPECT_EQ(plan.source_index(2), 0);
  EXPECT_EQ(plan.source_index(20), 3);
}

TEST(LayerPlan, MiniReindexesInsideTheEncoderWithoutAPool) {
  const ModelPlan plan = make_layer_plan(mini()).value();
  EXPECT_EQ(plan.boundary, 6);
  EXPECT_EQ(plan.layers[4].mode, LayerMode::reindex);
  EXPECT_EQ(plan.layers[4].kv_source, 2);
  EXPECT_FALSE(plan.layers[4].uses_candidates);
  EXPECT_EQ(plan.layers[5].mode, LayerMode::reuse);
  EXPECT_EQ(plan.layers[5].index_source, 4);
  EXPECT_TRUE(plan.layers[9].uses_candidates);
  EXPECT_TRUE(plan.layers[0].has_engram);
  EXPECT_TRUE(plan.layers[6].is_draft_target);
  ASSERT_EQ(plan.kv_sources.size(), 2u);
  EXPECT_EQ(plan.kv_sources[0].ratio, 2);
  EXPECT_EQ(plan.kv_sources[1].ratio, 1);
}

TEST(LayerPlan, DemoHasThreeSources) {
  const ModelPlan plan = make_layer_plan(config_of("config/demo")).value();
  EXPECT_EQ(plan.boundary, 6);
  EXPECT_EQ(plan.kv_sources.size(), 3u);
  EXPECT_EQ(plan.layers[2].kv_source, 1);
  EXPECT_EQ(plan.layers[5].kv_source, 3);
  EXPECT_EQ(plan.exact_replay_rows(64), 63 * 6 + 1);
}

TEST(LayerPlan, AWindowOnlyLayerMayFollowSources) {
  ModelConfig config = mini();
  config.compress_ratios[3] = 0;
  config.engram_layer_ids = {0, 3};
  const ModelPlan plan = make_layer_plan(config).value();
  EXPECT_EQ(plan.layers[3].mode, LayerMode::window_only);
  EXPECT_EQ(plan.layers[4].kv_source, 2);
}

struct BadList {
  const char* name;
  std::function<void(ModelConfig&)> change;
  const char* key;
  const char* problem;
};

class BadLists : public testing::TestWithParam<BadList> {};

TEST_P(BadLists, AreRefusedByName) {
  ModelConfig config = mini();
  GetParam().change(config);
  const auto plan = make_layer_plan(config);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Errc::invalid_config);
  EXPECT_THAT(plan.error().context, AllOf(HasSubstr("text_config."), HasSubstr(GetParam().key),
                                          HasSubstr(GetParam().problem)));
}

INSTANTIATE_TEST_SUITE_P(
    LayerPlan, BadLists,
    testing::Values(
        BadList{"too_few_ratios", [](ModelConfig& c) { c.compress_ratios.resize(10); },
                "compress_ratios", "has 10 entries"},
        BadList{"too_many_ratios", [](ModelConfig& c) { c.compress_ratios.resize(12); },
                "compress_ratios", "has 12 entries"},
        BadList{"draft_ratio", [](ModelConfig& c) { c.compress_ratios[12] = 1; },
                "compress_ratios[12] = 1", "DSpark"},
        BadList{"indivisible_block", [](ModelConfig& c) { c.sliding_window = 35; },
                "compress_ratios[2] = 2", "divisor"},
        BadList{"ratio_without_source", [](ModelConfig& c) { c.compress_ratios[1] = 2; },
                "compress_ratios[1] = 2", "no KV source"},
        BadList{"ratio_unlike_source", [](ModelConfig& c) { c.compress_ratios[5] = 1; },
                "compress_ratios[5] = 1", "layer 2, has ratio 2"},
        BadList{"no_sources", [](ModelConfig& c) { c.kv_source_layer_ids.clear(); },
                "kv_source_layer_ids", "empty"},
        BadList{"unsorted_sources",
                [](ModelConfig& c) {
                  c.kv_source_layer_ids = {6, 2};
                },
                "kv_source_layer_ids[1] = 2", "increasing"},
        BadList{"repeated_source",
                [](ModelConfig& c) {
                  c.kv_source_layer_ids = {2, 2, 6};
                },
                "kv_source_layer_ids[1] = 2", "increasing"},
        BadList{"source_out_of_range",
                [](ModelConfig& c) {
                  c.kv_source_layer_ids = {2, 11};
                },
                "kv_source_layer_ids[1] = 11", "num_hidden_layers is 11"},
        BadList{"source_without_ratio",
                [](ModelConfig& c) {
                  c.kv_source_layer_ids = {1, 2, 6};
                },
                "kv_source_layer_ids[0] = 1", "compress_ratios is 0"},
        BadList{"source_that_does_not_score",
                [](ModelConfig& c) {
                  c.index_source_layer_ids = {2, 4, 9};
                },
                "kv_source_layer_ids[1] = 6", "index_source_layer_ids"},
        BadList{"two_boundaries",
                [](ModelConfig& c) {
                  c.kv_source_layer_ids = {2, 6, 8};
                  c.index_source_layer_ids = {2, 6, 8};
                },
                "kv_source_layer_ids[1] = 6", "ratio 1"},
        BadList{"no_boundary",
                [](ModelConfig& c) {
                  for (size_t i = 6; i < 11; ++i) c.compress_ratios[i] = 2;
                },
                "kv_source_layer_ids[1] = 6", "ratio 2"},
        BadList{"boundary_at_layer_0",
                [](ModelConfig& c) {
                  c.compress_ratios.assign(11, 1);
                  c.kv_source_layer_ids = {0};
                  c.index_source_layer_ids = {0};
                },
                "kv_source_layer_ids[0] = 0", "without layers"},
        BadList{"index_source_without_ratio",
                [](ModelConfig& c) {
                  c.index_source_layer_ids = {1, 2, 6};
                },
                "index_source_layer_ids", "layer 1"},
        BadList{"index_source_out_of_range",
                [](ModelConfig& c) {
                  c.index_source_layer_ids = {2, 6, 40};
                },
                "index_source_layer_ids[2] = 40", "no such layer"},
        BadList{"candidates_of_a_reuse_layer",
                [](ModelConfig& c) { c.candidate_source_layer_id = 7; },
                "candidate_source_layer_id = 7", "reuse"},
        BadList{"candidates_of_a_reindex_layer",
                [](ModelConfig& c) { c.candidate_source_layer_id = 9; },
                "candidate_source_layer_id = 9", "reindex"},
        BadList{"candidates_out_of_range", [](ModelConfig& c) { c.candidate_source_layer_id = 11; },
                "candidate_source_layer_id = 11", "no such layer"},
        BadList{"candidates_of_another_source",
                [](ModelConfig& c) { c.candidate_source_layer_id = 2; },
                "candidate_source_layer_id = 2", "layer 9"},
        BadList{"engram_out_of_range",
                [](ModelConfig& c) {
                  c.engram_layer_ids = {0, 11};
                },
                "engram_layer_ids[1] = 11", "no such layer"},
        BadList{"engram_at_the_boundary",
                [](ModelConfig& c) {
                  c.engram_layer_ids = {0, 6};
                },
                "engram_layer_ids", "layer 6"},
        BadList{"engram_sizes", [](ModelConfig& c) { c.engram_num_embeddings = {1872}; },
                "engram_num_embeddings", "has 1 entries"},
        BadList{"no_targets", [](ModelConfig& c) { c.dspark_target_layer_ids.clear(); },
                "dspark_target_layer_ids", "empty"},
        BadList{"target_in_the_encoder",
                [](ModelConfig& c) {
                  c.dspark_target_layer_ids = {5, 8};
                },
                "dspark_target_layer_ids[0] = 5", "encoder"},
        BadList{"target_out_of_range",
                [](ModelConfig& c) {
                  c.dspark_target_layer_ids = {8, 11};
                },
                "dspark_target_layer_ids[1] = 11", "no such layer"}),
    [](const auto& test_case) { return std::string(test_case.param.name); });

}  // namespace
}  // namespace cedar::model
