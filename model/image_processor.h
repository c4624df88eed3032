#pragma once
// An RGB image to what the vision tower reads (spec/model.md 12.1): token grid, pixel size,
// patches.

#include <cstdint>
#include <vector>

#include "core/float_formats.h"
#include "core/result.h"
#include "model/image_resize.h"
#include "model/image_span.h"
#include "model/model_config.h"
#include "model/rgb_image.h"

namespace cedar::model {

/// How an image of a given size is brought to the model. `grid` and `size` decide everything after.
struct ImagePlan {
  ImageGrid grid;        // tokens after the aligner
  ImageSize size;        // pixels of the canvas, multiples of the patch size
  bool stretch = false;  // wider than max_wh_ratio: stretched to `size` instead of padded
};

/// A function of the sizes alone: admission and token counts need no pixels. The cost of a plan,
/// grid.span_tokens(), is at most config.max_image_tokens. Errors: invalid_argument (names width
/// and height) for an empty image, for one with more pixels than fit 62 bits, for one so narrow
/// that no pixel of its short side would remain.
Result<ImagePlan> plan_image(int64_t width, int64_t height, const VisionConfig& config);

/// Normalised patches, (u8 / 255 - 0.5) / 0.5 in fp32 rounded to bf16; row-major over the patch
/// grid, inside a patch channel, y, x.
struct ImagePatches {
  int64_t rows = 0;  // of patches
  int64_t columns = 0;
  int64_t patch_values = 0;  // 3 * patch size^2
  std::vector<Bf16> values;  // [rows * columns, patch_values]
};

/// REQUIRES: both sides of `canvas` are positive multiples of `patch_size`.
ImagePatches make_patches(const RgbImage& canvas, int64_t patch_size);

struct ProcessedImage {
  ImagePlan plan;
  ImagePatches patches;
};

/// plan_image, resize and pad (or stretch), patches. Thread-safe; a megapixel takes tens of
/// milliseconds, so callers with an event loop run it elsewhere. Errors: those of the steps.
Result<ProcessedImage> process_image(const RgbImage& image, const VisionConfig& config);

}  // namespace cedar::model
