#include "model/image_processor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "model/model_config.h"
#include "model/safetensors.h"
#include "tests/model/synthetic_image.h"

namespace cedar::model {
namespace {

using test::fnv1a;
using test::synthetic_image;
using ::testing::HasSubstr;

const std::string kGolden = std::string(CEDAR_SOURCE_DIR) + "/tests/golden/";

// Kept in a variable by callers: a range-for over a member of a temporary would dangle.
nlohmann::json read_json(const std::string& name) {
  std::ifstream file(kGolden + name);
  return nlohmann::json::parse(file);
}

VisionConfig vision_config(const std::string& model) {
  return load_model_config(kGolden + model).value().vision.value();
}

std::string describe(const ImagePlan& plan) {
  return nlohmann::json{plan.grid.rows, plan.grid.columns, plan.size.height, plan.size.width}
      .dump();
}

RgbImage golden_pixels(const SafetensorsFile& file) {
  const TensorView& pixels = *file.find("pixels");
  const auto bytes = pixels.as<uint8_t>();
  return {pixels.shape[1], pixels.shape[0], {bytes.begin(), bytes.end()}};
}

TEST(ImagePlan, EqualsTheReleaseOnItsGridCases) {
  const nlohmann::json manifest = read_json("manifest.json");
  const struct {
    const char* key;
    const char* model;
  } sets[] = {{"image_grid_cases", "mini"}, {"image_grid_cases_release_sizes", "release"}};
  for (const auto& set : sets) {
    const VisionConfig config = vision_config(set.model);
    for (const auto& c : manifest.at(set.key)) {
      const auto plan = plan_image(c.at("width"), c.at("height"), config);
      ASSERT_TRUE(plan) << c << plan.error().message();
      EXPECT_EQ(describe(*plan), c.at("plan").dump()) << set.model << c;
    }
  }
}

TEST(ImagePlan, EqualsTheSpecifiedFormulaOnRandomSizes) {
  const VisionConfig mini = vision_config("mini");
  const VisionConfig release = vision_config("release");
  const nlohmann::json file = read_json("images/images.json");
  for (const auto& c : file.at("plans")) {
    const VisionConfig& config = c.at(0) == "mini" ? mini : release;
    const auto plan = plan_image(c.at(1), c.at(2), config);
    if (!plan) {  // no pixel of the short side would remain, and Pillow refuses as well
      EXPECT_THAT(plan.error().context, HasSubstr("too narrow")) << c;
      continue;
    }
    EXPECT_EQ(describe(*plan), nlohmann::json({c.at(3), c.at(4), c.at(5), c.at(6)}).dump()) << c;
    EXPECT_LE(plan->grid.span_tokens(), config.max_image_tokens);
  }
}

TEST(ImagePlan, EveryAspectFitsTheBudgetOrIsRefused) {
  const VisionConfig config = vision_config("release");
  for (int64_t width = 1; width < 100'000; width = width * 3 / 2 + 1) {
    for (int64_t height = 1; height < 100'000; height = height * 3 / 2 + 1) {
      const auto plan = plan_image(width, height, config);
      if (!plan) {
        EXPECT_GT(std::max(width, height) / std::min(width, height), 10'000);
        continue;
      }
      EXPECT_LE(plan->grid.span_tokens(), config.max_image_tokens) << width << "x" << height;
      EXPECT_GT(plan->size.width, 0);
      EXPECT_EQ(plan->size.width % config.patch_size, 0);
      EXPECT_EQ(plan->size.height % config.patch_size, 0);
    }
  }
}

TEST(ImagePlan, RefusesImpossibleSizesWithTheirValues) {
  const VisionConfig config = vision_config("release");
  const struct {
    int64_t width, height;
    const char* text;
  } cases[] = {{0, 5, "0x5 pixels: no pixels"},
               {5, 0, "5x0 pixels: no pixels"},
               {-3, 4, "-3x4 pixels: no pixels"},
               {int64_t{1} << 40, 4, "side too long"},
               {100'000, 1, "100000x1 pixels: too narrow"},
               {1, 100'000, "1x100000 pixels: too narrow"}};
  for (const auto& c : cases) {
    const auto plan = plan_image(c.width, c.height, config);
    ASSERT_FALSE(plan) << c.text;
    EXPECT_EQ(plan.error().code, Errc::invalid_argument);
    EXPECT_THAT(plan.error().context, HasSubstr(c.text));
  }
}

TEST(ImagePlan, AspectLimitCutsThePlannedWidthAndStretches) {
  VisionConfig config = vision_config("mini");
  config.max_wh_ratio = 2.5;
  const ImagePlan wide = plan_image(400, 40, config).value();
  EXPECT_TRUE(wide.stretch);
  EXPECT_EQ(describe(wide), describe(plan_image(100, 40, config).value()));
  EXPECT_FALSE(plan_image(80, 40, config).value().stretch);
  EXPECT_FALSE(plan_image(40, 400, config).value().stretch);
  const auto processed = process_image(synthetic_image(400, 40, 1), config);
  ASSERT_TRUE(processed) << processed.error().message();
  // Stretched: the picture fills the canvas, so no corner patch is padding.
  EXPECT_NE(processed->patches.values.front(), Bf16((127.0f / 255.0f - 0.5f) / 0.5f));
}

TEST(ImageResize, PadsToTheBytesOfPillow) {
  const VisionConfig mini = vision_config("mini");
  const VisionConfig release = vision_config("release");
  const nlohmann::json file = read_json("images/images.json");
  for (const auto& c : file.at("cases")) {
    const auto plan =
        plan_image(c.at("width"), c.at("height"), c.at("config") == "mini" ? mini : release);
    ASSERT_TRUE(plan) << c;
    EXPECT_EQ(describe(*plan), c.at("plan").dump()) << c;
    const auto canvas = resize_and_pad(synthetic_image(c.at("width"), c.at("height"), c.at("seed")),
                                       plan->size, {127, 127, 127});
    ASSERT_TRUE(canvas) << c << canvas.error().message();
    EXPECT_EQ(fnv1a(canvas->pixels), c.at("fnv1a").get<std::string>()) << c;
  }
}

TEST(ImageResize, StretchesToTheBytesOfPillow) {
  const nlohmann::json file = read_json("images/images.json");
  for (const auto& c : file.at("stretch")) {
    const ImageSize to{c.at("to").at(0), c.at("to").at(1)};
    const auto out =
        resize_bicubic(synthetic_image(c.at("width"), c.at("height"), c.at("seed")), to);
    ASSERT_TRUE(out) << c;
    EXPECT_EQ(fnv1a(out->pixels), c.at("fnv1a").get<std::string>()) << c;
  }
}

TEST(ImageResize, RefusesWhatHasNoPixels) {
  const RgbImage image = synthetic_image(4, 3, 0);
  EXPECT_EQ(resize_bicubic(image, {0, 5}).error().code, Errc::invalid_argument);
  EXPECT_THAT(resize_bicubic(image, {0, 5}).error().context, HasSubstr("4x3"));
  EXPECT_EQ(resize_bicubic(RgbImage{}, {2, 2}).error().code, Errc::invalid_argument);
  EXPECT_EQ(resize_and_pad(RgbImage{}, {2, 2}, {}).error().code, Errc::invalid_argument);
  RgbImage short_image = image;
  short_image.pixels.pop_back();
  EXPECT_THAT(resize_bicubic(short_image, {2, 2}).error().context, HasSubstr("35 bytes"));
}

TEST(ImageProcessor, PatchesEqualTheReleaseBitForBit) {
  const auto file = SafetensorsFile::open(kGolden + "vision.safetensors").value();
  const auto processed = process_image(golden_pixels(*file), vision_config("mini"));
  ASSERT_TRUE(processed) << processed.error().message();
  const nlohmann::json vision = read_json("manifest.json").at("vision");
  EXPECT_EQ(processed->patches.rows, vision.at("n_vit_h"));
  EXPECT_EQ(processed->patches.columns, vision.at("n_vit_w"));
  EXPECT_EQ(processed->plan.grid.rows, vision.at("n_llm_h"));
  EXPECT_EQ(processed->plan.grid.columns, vision.at("n_llm_w"));
  EXPECT_EQ(processed->patches.patch_values, 300);

  const auto expected = file->find("patches")->as<Bf16>();
  ASSERT_EQ(processed->patches.values.size(), expected.size());
  size_t different = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    different += processed->patches.values[i] == expected[i] ? 0 : 1;
  }
  EXPECT_EQ(different, 0u);
}

TEST(ImageSpan, TokensAndTypesEqualTheRelease) {
  const auto file = SafetensorsFile::open(kGolden + "vision.safetensors").value();
  const auto tokens = file->find("tokens")->as<int32_t>();
  const auto types = file->find("token_types")->as<int32_t>();
  const nlohmann::json vision = read_json("manifest.json").at("vision");
  const ImageGrid grid{vision.at("n_llm_h"), vision.at("n_llm_w")};
  const Position start = vision.at("image_start");
  const TokenId image_token = load_model_config(kGolden + "mini").value().image_token_id.value();

  // The prompt as the tokenizer leaves it: one placeholder where the span begins.
  std::vector<TokenId> prompt(tokens.begin(), tokens.begin() + start + 1);
  prompt.insert(prompt.end(), tokens.begin() + start + grid.span_tokens(), tokens.end());
  const auto expanded = expand_image_placeholders(prompt, image_token, std::span(&grid, 1));
  ASSERT_TRUE(expanded) << expanded.error().message();
  EXPECT_THAT(expanded->tokens, ::testing::ElementsAreArray(tokens.begin(), tokens.end()));
  ASSERT_EQ(expanded->spans.size(), 1u);
  EXPECT_EQ(expanded->spans[0].position, start);

  std::vector<int32_t> found(tokens.size(), static_cast<int32_t>(ImageTokenType::text));
  Position position = start;
  for (const ImageTokenType type : image_span_types(grid)) {
    found[static_cast<size_t>(position++)] = static_cast<int32_t>(type);
  }
  EXPECT_EQ(position, expanded->spans[0].end());
  EXPECT_THAT(found, ::testing::ElementsAreArray(types.begin(), types.end()));
}

TEST(ImageSpan, PlacesSeveralImages) {
  const std::vector<TokenId> prompt = {9, 9, 5, 9};
  const std::vector<ImageGrid> grids = {{1, 1}, {2, 3}, {1, 2}};
  const ImagePrompt expanded = expand_image_placeholders(prompt, 9, grids).value();
  ASSERT_EQ(expanded.spans.size(), 3u);
  EXPECT_EQ(expanded.spans[0].position, 0);
  EXPECT_EQ(expanded.spans[1].position, 4);
  EXPECT_EQ(expanded.spans[2].position, 15);
  ASSERT_EQ(expanded.tokens.size(), 20u);
  EXPECT_EQ(expanded.tokens[14], 5);
  EXPECT_EQ(std::count(expanded.tokens.begin(), expanded.tokens.end(), 9), 19);
  EXPECT_TRUE(expand_image_placeholders({}, 9, {}).value().tokens.empty());
}

TEST(ImageSpan, RefusesWrongCounts) {
  const std::vector<TokenId> prompt = {9, 5};
  const std::vector<ImageGrid> two = {{1, 1}, {1, 1}};
  const std::vector<ImageGrid> empty = {{1, 0}};
  EXPECT_THAT(expand_image_placeholders(prompt, 9, two).error().context,
              HasSubstr("1 image placeholders for 2 images"));
  EXPECT_THAT(expand_image_placeholders(prompt, 9, {}).error().context,
              HasSubstr("1 image placeholders for 0 images"));
  EXPECT_THAT(expand_image_placeholders(prompt, 9, empty).error().context, HasSubstr("images[0]"));
}

}  // namespace
}  // namespace cedar::model
