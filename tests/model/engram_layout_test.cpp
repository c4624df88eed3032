#include "model/engram_layout.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/safetensors.h"
#include "tests/support/temp_directory.h"

namespace cedar::model {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

const std::string kGolden = std::string(CEDAR_SOURCE_DIR) + "/tests/golden";

ModelConfig config_of(const std::string& name) { return load_model_config(name).value(); }

std::shared_ptr<const SafetensorsFile> golden(const std::string& name) {
  return SafetensorsFile::open(kGolden + "/" + name).value();
}

nlohmann::json manifest() {
  return nlohmann::json::parse(test::read_file(kGolden + "/manifest.json"));
}

/// Mini's layout, token map and pad id.
struct MiniHash {
  MiniHash() {
    const auto units = golden("units.safetensors");
    for (int64_t id : units->find("engram.compressed_token_map")->as<int64_t>()) {
      map.push_back(static_cast<int32_t>(id));
    }
    pad = map.at(static_cast<size_t>(config.engram_pad_token_id));
  }
  ModelConfig config = config_of(kGolden + "/mini");
  EngramLayout layout = make_engram_layout(config).value();
  std::vector<int32_t> map;
  int32_t pad = 0;

  /// Rows of a whole sequence, [tokens, layers, columns] as the golden files keep them.
  std::vector<int64_t> rows(const std::vector<int32_t>& compressed) const {
    const size_t columns = static_cast<size_t>(layout.columns);
    const size_t layers = layout.layers.size();
    std::vector<int64_t> all(compressed.size() * layers * columns);
    std::vector<int64_t> one(compressed.size() * columns);
    for (size_t l = 0; l < layers; ++l) {
      layout.hash(layout.layers[l], {}, compressed, pad, one.data());
      for (size_t t = 0; t < compressed.size(); ++t) {
        std::copy_n(&one[t * columns], columns, &all[(t * layers + l) * columns]);
      }
    }
    return all;
  }
};

TEST(EngramLayout, ReleaseConstants) {
  const EngramLayout layout = make_engram_layout(config_of(kGolden + "/release")).value();
  const nlohmann::json expected = manifest()["release_engram"];
  ASSERT_EQ(layout.layers.size(), 2u);
  EXPECT_EQ(layout.columns, 24);
  EXPECT_EQ(layout.max_ngram, 4);
  for (size_t l = 0; l < 2; ++l) {
    const EngramLayerLayout& layer = layout.layers[l];
    std::vector<int64_t> primes;
    for (const auto& order : expected["primes"][l]) {
      for (const auto& prime : order) primes.push_back(prime.get<int64_t>());
    }
    EXPECT_EQ(layer.primes, primes);
    EXPECT_EQ(layer.rows, expected["sums"][l].get<int64_t>());
    EXPECT_EQ(layer.multipliers, expected["multipliers"][l].get<std::vector<int64_t>>());
    EXPECT_EQ(layer.offsets[0], 0);
    EXPECT_EQ(layer.offsets[23] + layer.primes[23], layer.rows);
  }
  EXPECT_EQ(layout.layers[0].layer, 1);
  EXPECT_EQ(layout.layers[1].layer, 14);
  EXPECT_THAT(layout.layers[0].multipliers,
              ElementsAre(76632096046245, 4839876093313, 35959672319349, 73987337458391));
}

// spec/model.md section 15.
TEST(EngramLayout, ReleaseRows) {
  const EngramLayout layout = make_engram_layout(config_of(kGolden + "/release")).value();
  const std::vector<int32_t> history = {1234, 99091, 17};  // oldest first
  const std::vector<int32_t> token = {5};
  std::vector<int64_t> rows(24);
  layout.hash(layout.layers[0], history, token, 2, rows.data());
  EXPECT_THAT(rows, ElementsAre(3889985, 30570021, 40268302, 53854578, 74235168, 81029010,
                                100426120, 118891433, 143562967, 153520896, 165847521, 186163984,
                                201532732, 215229454, 227289662, 255349519, 267847878, 274294505,
                                296358398, 316856071, 325730508, 347856547, 356005863, 382951069));
  layout.hash(layout.layers[1], history, token, 2, rows.data());
  EXPECT_THAT(rows, ElementsAre(897380, 16353005, 34900403, 63266234, 69449016, 85289440, 108947768,
                                120779290, 132727811, 159839151, 172631251, 181437488, 207275451,
                                217674875, 230909833, 245443092, 265549262, 286645428, 289035817,
                                305258854, 324356694, 347965993, 356439794, 368290631));
}

TEST(EngramLayout, MiniConstants) {
  const MiniHash mini;
  const auto units = golden("units.safetensors");
  const auto primes = units->find("engram.primes")->as<int64_t>();
  const auto offsets = units->find("engram.offsets")->as<int64_t>();
  const auto multipliers = units->find("engram.multipliers")->as<int64_t>();
  for (size_t l = 0; l < 2; ++l) {
    const EngramLayerLayout& layer = mini.layout.layers[l];
    EXPECT_THAT(layer.primes, ElementsAreArray(primes.subspan(6 * l, 6)));
    EXPECT_THAT(layer.offsets, ElementsAreArray(offsets.subspan(6 * l, 6)));
    EXPECT_THAT(layer.multipliers, ElementsAreArray(multipliers.subspan(3 * l, 3)));
  }
}

TEST(EngramLayout, DemoSumsToItsTables) {
  const auto layout = make_engram_layout(config_of(std::string(CEDAR_SOURCE_DIR) + "/config/demo"));
  ASSERT_TRUE(layout) << layout.error().message();
  EXPECT_EQ(layout->layers[0].rows, 30666);
  EXPECT_EQ(layout->layers[1].rows, 31904);
}

TEST(EngramLayout, RefusesTableSizesThatNoPrimesGive) {
  ModelConfig config = config_of(kGolden + "/mini");
  config.engram_num_embeddings[1] = 2113;
  const auto layout = make_engram_layout(config);
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code, Errc::invalid_config);
  EXPECT_THAT(layout.error().context,
              testing::AllOf(HasSubstr("text_config.engram_num_embeddings[1]"), HasSubstr("2113"),
                             HasSubstr("2112")));
}

TEST(EngramLayout, NoEngramLayersNoLayout) {
  ModelConfig config = config_of(kGolden + "/mini");
  config.engram_layer_ids.clear();
  config.engram_num_embeddings.clear();
  EXPECT_TRUE(make_engram_layout(config)->layers.empty());
}

TEST(EngramHash, EveryGoldenPrompt) {
  const MiniHash mini;
  const auto selection = golden("selection.safetensors");
  int checked = 0;
  const nlohmann::json prompts = manifest()["prompts"];
  for (const auto& [name, ids] : prompts.items()) {
    std::vector<int32_t> compressed;
    for (const auto& id : ids) compressed.push_back(mini.map.at(id.get<size_t>()));
    const TensorView* expected = selection->find(name + ".hash_ids");
    ASSERT_NE(expected, nullptr) << name;
    EXPECT_THAT(mini.rows(compressed), ElementsAreArray(expected->as<int64_t>())) << name;
    ++checked;
  }
  EXPECT_EQ(checked, 9);
}

TEST(EngramHash, ImagePositionsAreDead) {
  const MiniHash mini;
  const auto vision = golden("vision.safetensors");
  const auto tokens = vision->find("tokens")->as<int32_t>();
  const auto types = vision->find("token_types")->as<int32_t>();
  std::vector<int32_t> compressed;
  for (size_t i = 0; i < tokens.size(); ++i) {
    compressed.push_back(types[i] < 0 ? mini.map.at(static_cast<size_t>(tokens[i])) : kDeadToken);
  }
  EXPECT_THAT(mini.rows(compressed), ElementsAreArray(vision->find("hash_ids")->as<int64_t>()));
}

// Field report B39: rows may not depend on where a sequence is cut into chunks.
TEST(EngramHash, AnySplitGivesTheSameRows) {
  const MiniHash mini;
  ModelConfig four_grams = config_of(kGolden + "/release");
  const EngramLayout release = make_engram_layout(four_grams).value();
  std::mt19937 random(20240);
  for (const EngramLayout* layout : {&mini.layout, &release}) {
    const int32_t ids = layout == &release ? 99092 : 1010;
    for (int round = 0; round < 200; ++round) {
      std::vector<int32_t> tokens(1 + random() % 40);
      for (int32_t& id : tokens) {
        id = random() % 8 == 0 ? kDeadToken
                               : static_cast<int32_t>(random() % static_cast<uint32_t>(ids));
      }
      const EngramLayerLayout& layer = layout->layers[random() % layout->layers.size()];
      const size_t columns = static_cast<size_t>(layout->columns);
      std::vector<int64_t> whole(tokens.size() * columns);
      layout->hash(layer, {}, tokens, 2, whole.data());

      std::vector<int64_t> pieces(whole.size());
      for (size_t at = 0; at < tokens.size();) {
        const size_t count = std::min<size_t>(1 + random() % 5, tokens.size() - at);
        // What a session keeps: the last max_ngram - 1 ids, fewer at the start.
        const size_t kept = std::min<size_t>(at, static_cast<size_t>(layout->max_ngram) - 1);
        const std::span<const int32_t> all(tokens);
        layout->hash(layer, all.subspan(at - kept, kept), all.subspan(at, count), 2,
                     &pieces[at * columns]);
        at += count;
      }
      ASSERT_EQ(pieces, whole) << "round " << round;
      for (int64_t row : whole) ASSERT_TRUE(row >= 0 && row < layer.rows);
    }
  }
}

TEST(EngramHash, ADeadPositionCutsLongerLookBacks) {
  const MiniHash mini;
  const EngramLayerLayout& layer = mini.layout.layers[0];
  std::vector<int64_t> cut(6), shorter(6), pads(6);
  const std::vector<int32_t> token = {7};
  mini.layout.hash(layer, std::vector<int32_t>{11, kDeadToken}, token, mini.pad, cut.data());
  mini.layout.hash(layer, {}, token, mini.pad, shorter.data());
  mini.layout.hash(layer, std::vector<int32_t>{mini.pad, mini.pad}, token, mini.pad, pads.data());
  EXPECT_EQ(cut, shorter);
  EXPECT_EQ(cut, pads);
}

}  // namespace
}  // namespace cedar::model
