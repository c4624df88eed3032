#pragma once
// Antialiased bicubic resampling of 8-bit RGB, equal bit for bit to BICUBIC of Pillow before 12.2
// (spec/model.md 12.1.4). Later ones resize the rows of some images before their columns, which
// changes pixels by a few units.
//
// The bits matter: the model was trained on these pixels, and a resampler that keeps floats between
// the two passes differs visibly at hard edges. So the arithmetic is Pillow's: per output pixel,
// weights in double over a window that grows with the reduction, normalised, then rounded to fixed
// point with 22 fractional bits; 32-bit sums; each pass rounds and clamps to 8 bits; horizontal
// pass first.

#include <array>
#include <cstdint>

#include "core/result.h"
#include "model/rgb_image.h"

namespace cedar::model {

struct ImageSize {
  int64_t width = 0;
  int64_t height = 0;
  friend bool operator==(ImageSize, ImageSize) = default;
};

/// Stretches to `size`. A side that already fits is not resampled. Errors: invalid_argument for an
/// empty image, for pixels that do not match its sides, for an empty size.
Result<RgbImage> resize_bicubic(const RgbImage& image, ImageSize size);

/// The largest size inside `box` with the aspect of `from`: the free side is round(h / w * box
/// width) or round(w / h * box height), halves to even, all in double. May be 0 for extreme
/// aspects.
ImageSize fit_inside(ImageSize from, ImageSize box);

/// Resizes to fit_inside() and centres on a canvas of `size` and colour `fill`; offset =
/// round(difference / 2), halves to even. Errors: those of resize_bicubic, naming both sizes.
Result<RgbImage> resize_and_pad(const RgbImage& image, ImageSize size, std::array<uint8_t, 3> fill);

}  // namespace cedar::model
