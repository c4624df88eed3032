#include "model/image_processor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "core/check.h"
#include "core/units.h"

namespace cedar::model {
namespace {

constexpr std::array<uint8_t, 3> kPadColour = {127, 127, 127};
constexpr int64_t kMaxSide = int64_t{1}
                             << 31;  // the product of two sides stays inside int64 and exact

ImageGrid grid_of(ImageSize size, const VisionConfig& config) {
  return {ceil_div(size.height / config.patch_size, config.downsample_ratio),
          ceil_div(size.width / config.patch_size, config.downsample_ratio)};
}

int64_t floor_to(double pixels, int64_t patch) {
  return static_cast<int64_t>(std::floor(pixels / static_cast<double>(patch))) * patch;
}

/// The largest size of this aspect whose grid fits max_image_tokens: gh (gw + 1) + 2 <= max with gh
/// = gw * r, solved for gw as a real number, then floored to whole cells.
ImageSize shrink_to_budget(double width, double height, const VisionConfig& config) {
  const int64_t cell = config.patch_size * config.downsample_ratio;
  const int64_t budget = config.max_image_tokens - 2;
  const double r = height / width;
  const double columns = std::sqrt(static_cast<double>(budget) / r + 0.25) - 0.5;
  const double rows = columns * r;
  if (columns < 1.0) return {cell, budget / 2 * cell};
  if (rows < 1.0) return {(budget - 1) * cell, cell};
  const double side = static_cast<double>(cell);
  const double beta =
      std::min(std::floor(columns) * side / width, std::floor(rows) * side / height);
  return {floor_to(width * beta, config.patch_size), floor_to(height * beta, config.patch_size)};
}

Error bad_size(int64_t width, int64_t height, const std::string& why) {
  return make_error(Errc::invalid_argument, "image: " + std::to_string(width) + "x" +
                                                std::to_string(height) + " pixels: " + why);
}

}  // namespace

Result<ImagePlan> plan_image(int64_t width, int64_t height, const VisionConfig& config) {
  if (width <= 0 || height <= 0) return bad_size(width, height, "no pixels");
  if (width >= kMaxSide || height >= kMaxSide) return bad_size(width, height, "side too long");

  // The steps are those of the release, in double, in its order: truncations and ceilings see the
  // same values. `w` is a double because an aspect limit may make it fractional.
  ImagePlan plan;
  double w = static_cast<double>(width);
  double h = static_cast<double>(height);
  if (config.max_wh_ratio) {
    plan.stretch = w >= *config.max_wh_ratio * h;
    w = std::min(w, h * *config.max_wh_ratio);
  }
  const double min_pixels = static_cast<double>(config.min_pixels);
  if (w * h < min_pixels) {
    const double ratio = std::pow(min_pixels / (w * h), 0.5);
    w = std::trunc(w * ratio);
    h = std::trunc(h * ratio);
  }
  const double patch = static_cast<double>(config.patch_size);
  plan.size = {static_cast<int64_t>(std::ceil(w / patch)) * config.patch_size,
               static_cast<int64_t>(std::ceil(h / patch)) * config.patch_size};
  plan.grid = grid_of(plan.size, config);
  if (plan.grid.span_tokens() > config.max_image_tokens) {
    plan.size = shrink_to_budget(w, h, config);
    plan.grid = grid_of(plan.size, config);
  }
  const ImageSize inner = plan.stretch ? plan.size : fit_inside({width, height}, plan.size);
  if (inner.width <= 0 || inner.height <= 0) return bad_size(width, height, "too narrow to resize");
  if (plan.grid.span_tokens() > config.max_image_tokens) {
    return bad_size(width, height,
                    "needs " + std::to_string(plan.grid.span_tokens()) + " tokens, limit " +
                        std::to_string(config.max_image_tokens));
  }
  return plan;
}

ImagePatches make_patches(const RgbImage& canvas, int64_t patch_size) {
  CEDAR_ASSERT(patch_size > 0 && canvas.width > 0 && canvas.height > 0, "empty canvas");
  CEDAR_ASSERT(canvas.width % patch_size == 0 && canvas.height % patch_size == 0, "ragged canvas");
  std::array<Bf16, 256> normalised;
  for (size_t v = 0; v < normalised.size(); ++v) {
    normalised[v] = Bf16((static_cast<float>(v) / 255.0f - 0.5f) / 0.5f);
  }

  ImagePatches patches;
  patches.rows = canvas.height / patch_size;
  patches.columns = canvas.width / patch_size;
  patches.patch_values = 3 * patch_size * patch_size;
  patches.values.resize(canvas.pixels.size());
  Bf16* out = patches.values.data();
  for (int64_t row = 0; row < patches.rows; ++row) {
    for (int64_t column = 0; column < patches.columns; ++column) {
      for (int64_t channel = 0; channel < 3; ++channel) {
        for (int64_t y = 0; y < patch_size; ++y) {
          const uint8_t* source =
              canvas.row(row * patch_size + y) + column * patch_size * 3 + channel;
          for (int64_t x = 0; x < patch_size; ++x) *out++ = normalised[source[x * 3]];
        }
      }
    }
  }
  return patches;
}

Result<ProcessedImage> process_image(const RgbImage& image, const VisionConfig& config) {
  ProcessedImage result;
  CEDAR_TRY(result.plan, plan_image(image.width, image.height, config));
  if (result.plan.stretch) {
    CEDAR_TRY(const RgbImage canvas, resize_bicubic(image, result.plan.size));
    result.patches = make_patches(canvas, config.patch_size);
  } else {
    CEDAR_TRY(const RgbImage canvas, resize_and_pad(image, result.plan.size, kPadColour));
    result.patches = make_patches(canvas, config.patch_size);
  }
  return result;
}

}  // namespace cedar::model
